"""First half of a group's walk-through: rewards, what they are compared with, and the advantages that come of it."""

from __future__ import annotations

import math
from typing import Any

from grouprl.algorithms import step_advantages
from grouprl.config.algorithm import options
from grouprl.lab.explain import compared, comparison_sentence
from grouprl.lab.explain_record import Peer, Recorded
from grouprl.record.groups import RecordedGroup
from grouprl.report.worked import Spread
from grouprl.types import RewardOutcome


def rewards_stage(recorded: Recorded) -> dict[str, Any]:
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


def statistics_stage(recorded: Recorded) -> dict[str, Any]:
    """What the rewards are compared with: `kind` is what is compared, `sentence` says it.

    `kind` "rewards" has `compared`, see `explain.compared`; "components" has one for each reward in `by_name`; "steps"
    has the rewards of all steps; "tokens" has `compared` where the group takes part in it, else none.
    """
    a = recorded.algorithm
    if a.advantage.credit == "step":
        return _of_steps(recorded)
    if a.advantage.credit == "token":
        baseline = options(a)["baseline"]
        grouped = baseline in ("mean", "leave_one_out")
        whose = {"critic": "what the critic expected of it", "batch_mean": "the mean over the batch's tokens"}
        against = "the group, before the KL of each token" if grouped else whose.get(baseline, "a constant")
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


def advantages_stage(group: RecordedGroup) -> dict[str, Any]:
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
    return compared(own, recorded.algorithm, others)


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
        "n": spread.count,
        "sum": spread.sum,
        "mean": spread.mean,
        "sum_of_squares": spread.sum_of_squares if spread.count > 1 else None,
        "divided_by": spread.divided_by,
        "deviation": spread.deviation if spread.count > 1 else None,
        "std": std,
        "steps": [[{"end": end, "reward": reward, "normalised": next(each)} for end, reward in row] for row in rows],
    }
