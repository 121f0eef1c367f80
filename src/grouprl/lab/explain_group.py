"""The walk-through of one recorded group, from its prompt to what its update did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from grouprl.algorithms.values import CopiedCritic, SharedCritic
from grouprl.lab.explain_record import Recorded, material_of, read_recorded
from grouprl.lab.explain_rewards import advantages_stage, rewards_stage, statistics_stage
from grouprl.lab.explain_stages import algorithm_part, gradient_stage, kl_stage, loss_stage, ratio_stage
from grouprl.lab.runs import Runs
from grouprl.record.groups import RecordedGroup
from grouprl.report.recorded import recorded
from grouprl.report.worked import exact_sum

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
            "rewards": rewards_stage(recorded),
            "statistics": statistics_stage(recorded),
            "advantages": advantages_stage(recorded.group),
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
