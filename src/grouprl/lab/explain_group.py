"""The walk-through of one recorded group, from its prompt to what its update did."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from grouprl.algorithms import step_advantages
from grouprl.algorithms.values import CopiedCritic, SharedCritic
from grouprl.config.algorithm import options
from grouprl.lab.explain_record import Peer, Recorded, material_of, read_recorded
from grouprl.lab.explain_stages import algorithm_part, gradient_stage, kl_stage, loss_stage, ratio_stage
from grouprl.lab.runs import Runs
from grouprl.record.read import RecordedGroup
from grouprl.report.recorded import recorded
from grouprl.report.worked import Spread, compared, comparison_sentence, exact_sum
from grouprl.types import RewardOutcome

_NEAR = 40  # steps on either side in which groups are looked for that were read again after their update


def walk_through(runs: Runs, run: str, step: int, place: int) -> dict[str, Any]:
    """Every stage of a recorded group.

    Args:
        runs: where the run is.
        run: its id.
        step: from 1.
        place: of the group in the step, from 0.

    Returns:
        `source`; `algorithm`; `kept`, whether the group was learned from; `notes`, what the numbers leave out; and
        `stages` in their order: `prompt`, `completions`, `rewards`, `statistics`, `advantages`, `ratio`, `kl`, `loss`,
        `gradient`, `update`.

    Raises:
        UserError: no such run, step or group, or a run of another version.
    """
    recorded = read_recorded(runs, run, step, place)
    material = material_of(recorded)
    batch = {"groups": len(recorded.batch), "completions": sum(len(group) for group in recorded.batch)}
    return {
        "source": {"run": run, "step": step, "group": place, "groups": len(recorded.peers)},
        "algorithm": algorithm_part(material),
        "kept": recorded.kept[place],
        "notes": _notes(recorded),
        "stages": {
            "prompt": _prompt(recorded.group),
            "completions": _completions(recorded.group),
            "rewards": _rewards_stage(recorded),
            "statistics": _statistics_stage(recorded),
            "advantages": _advantages_stage(recorded.group),
            "ratio": ratio_stage(material, _ratio_reasons(recorded)),
            "kl": kl_stage(material, _kl_reason(recorded)),
            "loss": {**loss_stage(material), "step": recorded.metrics.get("loss"), "batch": batch},
            "gradient": gradient_stage(material),
            "update": _update(recorded, runs.folder(run)),
        },
    }


def _prompt(group: RecordedGroup) -> dict[str, Any]:
    problem = group.group.problem
    messages = None if isinstance(problem.prompt, str) else [dict(message) for message in problem.prompt]
    return {
        "problem_id": problem.id,
        "text": problem.prompt_text,
        "messages": messages,
        "columns": dict(problem.columns),
        "tokens": len(group.group.prompt_ids),
    }


def _completions(group: RecordedGroup) -> list[dict[str, Any]]:
    return [
        {"index": one.index, "text": one.text, "length": len(one), "stop_reason": one.stop_reason.value}
        for one in group.group.completions
    ]


# Rewards, and what they are compared with


def _rewards_stage(recorded: Recorded) -> dict[str, Any]:
    """Each completion's reward by component, the weights, and what the KL takes off it, where it does.

    `by_step`: the names of process rewards, whose component is the mean over the completion's steps, and no part of
    its reward (None: a run with such rewards did not record which); of each completion, `steps` has them all.
    """
    outcomes, taken = recorded.group.outcomes, [peer.taken for peer in recorded.own]
    names, process = _component_names(recorded.group), recorded.process_rewards
    by_step = None if process is None else [name for name in names if name in process]
    return {
        "names": names,
        "by_step": by_step if recorded.algorithm.advantage.credit == "step" else [],
        "weights": {name: recorded.reward_weights.get(name) for name in names},
        "completions": [_reward(outcome, penalty) for outcome, penalty in zip(outcomes, taken, strict=True)],
    }


def _statistics_stage(recorded: Recorded) -> dict[str, Any]:
    """What the rewards are compared with: `kind` is what is compared, `sentence` says it.

    `kind` "rewards" has `compared`, see `report.worked`; "components" has one for each reward in `by_name`; "steps"
    has the rewards of all steps; "tokens" has `compared` where the group takes part in it, else none.
    """
    a = recorded.algorithm
    if a.advantage.credit == "step":
        return _of_steps(recorded)
    if a.advantage.credit == "token":
        baseline = options(a)["baseline"]
        grouped = baseline in ("mean", "leave_one_out")
        whose = {
            "critic": "what the critic expected of it",
            "batch_mean": "the mean over the batch's tokens",
            "none": "nothing",
        }
        against = "the group, before the KL of each token" if grouped else whose.get(baseline, a.advantage.formula)
        return {
            "kind": "tokens",
            "sentence": f"{a.name} gives credit token by token, for the reward still to come, against {against}.",
            "compared": _compared(recorded) if grouped else None,
        }
    if options(a).get("reward_mix") == "normalise_then_sum":
        by_name = {name: _compared(recorded, name) for name in _component_names(recorded.group)}
        sentence = f"Each reward function by itself; the advantages are added up. {comparison_sentence(a)}"
        return {"kind": "components", "sentence": sentence, "by_name": by_name}
    return {"kind": "rewards", "sentence": comparison_sentence(a), "compared": _compared(recorded)}


def _advantages_stage(group: RecordedGroup) -> dict[str, Any]:
    """The advantages that the run recorded: of each completion, and of its tokens where they differ."""
    by_token = any(len(set(row)) > 1 for row in group.token_advantages)
    return {
        "completions": list(group.advantages),
        "by_token": by_token,
        "tokens": [list(row) for row in group.token_advantages] if by_token else None,
    }


def _reward(outcome: RewardOutcome, penalty: float) -> dict[str, Any]:
    return {
        "components": dict(outcome.components),
        "reward": outcome.total if outcome.valid else None,
        "invalid_reason": outcome.reason or None,
        "correct": outcome.correct,
        "penalty": penalty,
        "steps": [{"end": step.end, "reward": step.reward} for step in outcome.steps],
    }


def _compared(recorded: Recorded, component: str | None = None) -> dict[str, Any]:
    """Against the group, or against the batch that it was learned from with."""
    whole = recorded.algorithm.advantage.credit == "completion"
    own, *others = ([_value(peer, component, whole) for peer in group] for group in (recorded.own, *recorded.others))
    kept = recorded.kept[recorded.place]
    return compared(own, recorded.algorithm, others, kept=kept, component=component is not None)


def _value(peer: Peer, component: str | None, whole: bool) -> float:
    """What is compared: its reward (less a KL, if `whole`), or one reward function's value of it; NaN = invalid."""
    if component is None:
        return peer.reward - (peer.taken if whole else 0.0)
    value = None if math.isnan(peer.reward) else peer.components.get(component)
    return math.nan if value is None else value


def _component_names(group: RecordedGroup) -> list[str]:
    return list(dict.fromkeys(name for outcome in group.outcomes for name in outcome.components))


def _of_steps(recorded: Recorded) -> dict[str, Any]:
    """All steps of all completions are one set; the completion's own reward is one more step, that ends with it."""
    a, group = recorded.algorithm, recorded.group
    rows = [
        [*((step.end, step.reward) for step in outcome.steps), (len(completion) - 1, outcome.total)]
        if outcome.valid
        else []
        for outcome, completion in zip(group.outcomes, group.group.completions, strict=True)
    ]
    found, std = [reward for row in rows for _, reward in row], options(a)["std"]
    # As completions of one token and one step each, their advantages are their normalised rewards.
    ones = [1] * len(found)
    normalised_K1 = step_advantages(
        [[reward] for reward in found], [[0] for _ in found], [0] * len(found), ones, std=std, eps=options(a)["eps"]
    )
    each = iter(normalised_K1.flatten().tolist())
    spread = Spread.of(found, std)
    return {
        "kind": "steps",
        "sentence": "The rewards of all steps of the group are compared with each other; a token is credited with "
        "every step that ends at or after it.",
        **vars(spread),
        "std": std,
        "steps": [[{"end": end, "reward": reward, "normalised": next(each)} for end, reward in row] for row in rows],
    }


# Words about the group


def _notes(recorded: Recorded) -> list[str]:
    a, notes = recorded.algorithm, []
    if not recorded.kept[recorded.place]:
        notes.append("This group was dropped: it has no part in the loss, and its advantages are 0.")
    updates = a.updates.passes * a.updates.minibatches
    if updates > 1:
        notes.append(
            f"The run makes {updates} updates from a batch; the policy is that of the last pass, and "
            "the loss is averaged as if the batch were one update."
        )
    if a.correction is not None:
        notes.append("The run weighs its advantages for a sampler that differs from the learner; this is left out.")
    if a.spread.entropy_share < 1:
        notes.append("The run's advantages reach the tokens of highest entropy alone; here they reach every token.")
    if a.spread.entropy_coef > 0:
        notes.append("The run's bonus for entropy is left out of loss and gradient.")
    if isinstance(a.critic, SharedCritic):
        notes.append("The loss of the critic, which shares the policy's trunk, is left out.")
    return notes


def _ratio_reasons(recorded: Recorded) -> list[str | None]:
    a = recorded.algorithm
    once = "one update per batch: the policy that learns is the one that sampled, and the ratio is 1 up to rounding"
    unread = "the learner did not read this completion, because nothing in it could move the policy: the ratio is 1"
    if isinstance(a.critic, CopiedCritic) and a.critic.critic_warmup >= recorded.step:
        unread = "the critic alone learned in this step: the ratio is 1"
    return [
        unread if trace.logprobs is None else once if a.updates.passes * a.updates.minibatches == 1 else None
        for trace in recorded.group.traces
    ]


def _kl_reason(recorded: Recorded) -> str | None:
    if recorded.algorithm.kl is None:
        return "kl_coef is 0: there is no reference to stay close to"
    if any(trace.reference is None for trace in recorded.group.traces):
        return "the reference did not read this group, because it was dropped"
    if recorded.algorithm.kl.kl_in == "reward":
        return "taken off the reward, from the sampler's log-probs"
    return None


# What the update did


def _update(recorded: Recorded, folder: Path) -> dict[str, Any]:
    """How probable the completions were before and after the update; a run looks again at one group in ten steps."""
    watched = _watched(folder, recorded.step)
    rows = []
    for completion, trace in zip(recorded.group.group.completions, recorded.group.traces, strict=True):
        before = None if trace.logprobs is None else exact_sum(trace.logprobs)
        after = None if trace.updated is None else exact_sum(trace.updated)
        rows.append(
            {
                "sampled": exact_sum(completion.logprobs),
                "before": before,
                "after": after,
                "probability_before": _exp(before),
                "probability_after": _exp(after),
                "factor": None if before is None or after is None else _exp(after - before),
            }
        )
    looked = any(trace.updated is not None for trace in recorded.group.traces)
    return {
        "completions": rows,
        "learning_rate": recorded.metrics.get("learning_rate"),
        "grad_norm": recorded.metrics.get("grad_norm"),
        "watched": [{"step": step, "group": group} for step, group in watched],
        "reason": None if looked else _not_watched(watched),
    }


def _exp(logprob: float | None) -> float | None:
    return None if logprob is None else float(torch.tensor(logprob, dtype=torch.float64).exp())


def watched_step(step: int) -> bool:
    """As `learner.trace.watches`, which brings models into memory that a page does not need."""
    return step % 10 == 1


def _watched(folder: Path, step: int) -> list[tuple[int, int]]:
    """(step, group) of what was read again after its update, near a step."""
    near = [one for one in range(max(step - _NEAR, 0), step + _NEAR + 1) if watched_step(one)]
    query = (
        "SELECT step, group_index FROM completions WHERE step = ? AND updated_logprobs IS NOT NULL "
        "ORDER BY group_index LIMIT 1"
    )
    with recorded(folder) as database:
        found = [database.execute(query, (one,)).fetchone() for one in sorted({step, *near})]
    return [(row["step"], row["group_index"]) for row in found if row is not None]


def _not_watched(watched: list[tuple[int, int]]) -> str:
    rule = "The first group with a signal of steps 1, 11, 21, ... is read again after the update; this one was not."
    near = ", ".join(f"step {step} group {group}" for step, group in watched)
    return f"{rule} Of this run there are: {near}." if near else f"{rule} None near this step was."
