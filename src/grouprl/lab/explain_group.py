"""The walk-through of a group, from its prompt to what its update did: one that a run recorded, or typed rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from grouprl.algorithms import kl_estimate, policy_ratios, step_advantages
from grouprl.config.algorithm import options
from grouprl.files import is_number
from grouprl.lab.explain_record import (
    Material,
    Peer,
    Recorded,
    kl_reason,
    material_of,
    notes,
    ratio_reasons,
    read_recorded,
)
from grouprl.lab.report.prompts import asked_by
from grouprl.lab.report.worked import Spread, compared, comparison_sentence, exact_sum
from grouprl.lab.runs import Runs
from grouprl.types import RewardOutcome

# Fields of an algorithm that decide which equations and numbers are shown.
_SHOWN = (
    *("baseline", "scale", "std", "credit", "reward_mix", "gamma", "lam"),
    *("surrogate", "ratio", "clip_low", "clip_high", "dual_clip", "tau_pos", "tau_neg", "aggregate"),
    *("kl_in", "kl_unbiased", "passes", "minibatches"),
)

_NEAR_ONE = 1e-3  # in float32, sampler and learner agree to 1e-5


def recorded_walk(runs: Runs, run: str, step: int, place: int) -> dict[str, Any]:
    """Every stage of a recorded group.

    Args:
        runs: where the run is.
        run: its id.
        step: from 1.
        place: of the group in the step, from 0.

    Returns:
        `source`; `algorithm`; `kept`, whether the group was learned from; `notes`, what the numbers skip; and
        `stages` in their order: `prompt`, `completions`, `rewards`, `statistics`, `advantages`, `ratio`, `kl`, `loss`,
        `gradient`, `update`.

    Raises:
        UserError: no such run, step or group, or a run of another version.
    """
    recorded = read_recorded(runs, run, step, place)
    problem = recorded.group.group.problem
    prompt = {
        "problem_id": problem.id,
        "text": problem.prompt_text,
        "messages": asked_by(runs.folder(run), problem.id)["messages"],
        "columns": dict(problem.columns),
        "tokens": len(recorded.group.group.prompt_ids),
    }
    return {
        "source": {"run": run, "step": step, "group": place, "groups": len(recorded.peers)},
        "notes": notes(recorded),
        **walk_through(recorded, material_of(recorded), prompt, ratio_reasons(recorded), kl_reason(recorded)),
    }


def walk_through(
    recorded: Recorded,
    material: Material,
    prompt: dict[str, Any],
    ratio_reasons: Sequence[str | None],
    kl_reason: str | None,
) -> dict[str, Any]:
    """`algorithm`, `kept` and `stages` of a group; the reasons say why a ratio or the KL is what it is."""
    batch = {"groups": len(recorded.batch), "completions": sum(len(group) for group in recorded.batch)}
    return {
        "algorithm": _algorithm_part(material),
        "kept": recorded.kept[recorded.place],
        "stages": {
            "prompt": prompt,
            "completions": [
                {"index": one.index, "text": one.text, "length": len(one), "stop_reason": one.stop_reason.value}
                for one in recorded.group.group.completions
            ],
            "rewards": _rewards_stage(recorded),
            "statistics": _statistics_stage(recorded),
            "advantages": _advantages_stage(recorded),
            "ratio": {**_ratio_stage(material, ratio_reasons), "of_step": _ratios_of_step(recorded)},
            "kl": _kl_stage(material, kl_reason),
            "loss": {**_loss_stage(material), "step": recorded.metrics.get("loss"), "batch": batch},
            "gradient": _gradient_stage(material),
            "update": _update_stage(recorded),
        },
    }


def _algorithm_part(material: Material) -> dict[str, Any]:
    """What the loss is made with."""
    a = material.algorithm
    known = options(a)
    return {
        "name": a.name,
        "formula": a.advantage.formula,
        **{name: known.get(name) for name in _SHOWN},
        "kl": known.get("kl_estimator"),
        "kl_coef": material.kl_coef,
        "updates_per_batch": a.updates.passes * a.updates.minibatches,
    }


# Rewards, and what they are compared with


def _rewards_stage(recorded: Recorded) -> dict[str, Any]:
    """Each completion's reward by component, the weights, and what the KL takes off it, where it does.

    `by_step`: the names of process rewards, whose component is the mean over the completion's steps, and no part of
    its reward (None: a run with such rewards did not record which); of each completion, `steps` has them all.
    """
    names, process = _component_names(recorded), recorded.process_rewards
    by_step = None if process is None else [name for name in names if name in process]
    return {
        "names": names,
        "by_step": by_step if recorded.algorithm.advantage.credit == "step" else [],
        "weights": {name: recorded.reward_weights.get(name) for name in names},
        "completions": list(map(_reward, recorded.group.outcomes, recorded.own)),
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
            "critic": "the critic's prediction",
            "batch_mean": "the mean over the batch's tokens",
            "none": "nothing",
        }
        against = "the group, before the KL of each token" if grouped else whose.get(baseline, a.advantage.formula)
        return {
            "kind": "tokens",
            "sentence": f"{a.name} gives each token an advantage: the reward still to come, compared with {against}.",
            "compared": _compared(recorded) if grouped else None,
        }
    if options(a).get("reward_mix") == "normalise_then_sum":
        by_name = {name: _compared(recorded, name) for name in _component_names(recorded)}
        sentence = f"Each reward function gives its own advantages, which are added up. {comparison_sentence(a)}"
        return {"kind": "components", "sentence": sentence, "by_name": by_name}
    return {"kind": "rewards", "sentence": comparison_sentence(a), "compared": _compared(recorded)}


def _advantages_stage(recorded: Recorded) -> dict[str, Any]:
    """The recorded advantages: of each completion, and of its tokens where they differ."""
    group = recorded.group
    by_token = any(len(set(row)) > 1 for row in group.token_advantages)
    return {
        "completions": list(group.advantages),
        "by_token": by_token,
        "tokens": [list(row) for row in group.token_advantages] if by_token else None,
    }


def _reward(outcome: RewardOutcome, peer: Peer) -> dict[str, Any]:
    return {
        "components": dict(outcome.components),
        "reward": outcome.total if outcome.valid else None,
        "invalid_reason": outcome.reason or None,
        "correct": outcome.correct,
        "penalty": peer.taken,
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


def _component_names(recorded: Recorded) -> list[str]:
    return list(dict.fromkeys(name for outcome in recorded.group.outcomes for name in outcome.components))


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
    # As completions of one token and one step each, their advantages are their normalized rewards.
    groups, ones = [0] * len(found), [1] * len(found)
    normalized_K1 = step_advantages(
        [[reward] for reward in found], [[0] for _ in found], groups, ones, std=std, eps=options(a)["eps"]
    )
    each = iter(normalized_K1.flatten().tolist())
    return {
        "kind": "steps",
        "sentence": "The rewards of all reasoning steps of the group are compared. The advantage of a token is the sum "
        "over the reasoning steps that end at or after it.",
        **vars(Spread.of(found, std)),
        "std": std,
        "steps": [[{"end": end, "reward": reward, "normalised": next(each)} for end, reward in row] for row in rows],
    }


# Ratio, KL, loss and gradient of each completion, by `policy_loss`; and the update


def _ratio_stage(material: Material, reasons: Sequence[str | None]) -> dict[str, Any]:
    """Ratios of policy to behavior policy, token by token, and what the clip makes of them, where there is one."""
    a = material.algorithm
    ratios_GT = policy_ratios(material.logprobs_GT, material.old_GT, material.mask_GT, ratio=a.objective.ratio)
    bounded = a.objective.bounded
    completions = []
    for row, length in enumerate(material.lengths):
        _, stats = material.loss(material.logprobs_GT, rows=slice(row, row + 1))
        completions.append(
            {
                "ratios": ratios_GT[row, :length].tolist(),
                "mean": float(stats["ratio_mean"]),
                "max": float(stats["ratio_max"]),
                "clip_low_fraction": float(stats["clip_low_fraction"]) if bounded else None,
                "clip_high_fraction": float(stats["clip_high_fraction"]) if bounded else None,
                "reason": reasons[row],
            }
        )
    low, high = a.objective.range
    bounds = [1 - low, 1 + high] if bounded else []
    return {"bounds": bounds, "level": a.objective.ratio, "completions": completions}


def _ratios_of_step(recorded: Recorded) -> dict[str, Any]:
    """What the step recorded of its ratios: `max`, the share `clipped` on both sides, and whether all are `near` 1."""
    names = ("ratio_max", "clip_low_fraction", "clip_high_fraction")
    found = [float(value) for name in names if is_number(value := recorded.metrics.get(name))]
    if len(found) < len(names):
        return {"max": None, "clipped": None, "near": True}
    largest, low, high = found
    return {"max": largest, "clipped": low + high, "near": abs(largest - 1) < _NEAR_ONE and low + high == 0}


def _kl_stage(material: Material, reason: str | None) -> dict[str, Any]:
    """The KL estimate from the policy to the reference, of each completion: mean per token, and sum.

    `reason` says why there is none, or whose log-probs it is made from.
    """
    a, reference_GT = material.algorithm, material.reference_GT
    known = {
        "kind": a.kl.kl_estimator if a.kl else "k3",
        "coefficient": material.kl_coef,
        "in": a.kl.kl_in if a.kl else "loss",
        "reason": reason,
    }
    if reference_GT is None or a.kl is None:
        return {**known, "completions": None}
    # What is taken off the reward was known before the update: it is the sampler's.
    policy_GT = material.logprobs_GT if a.kl.kl_in == "loss" else material.old_GT
    kl_GT = kl_estimate(policy_GT, reference_GT, kind=a.kl.kl_estimator)
    rows = [kl_GT[row, :length] for row, length in enumerate(material.lengths)]
    return {**known, "completions": [{"mean": float(row.mean()), "sum": float(row.sum())} for row in rows]}


def _loss_stage(material: Material) -> dict[str, Any]:
    """The group's `share` in the batch's loss, in parts and by completion; `alone`: as if the group were the batch."""
    at, nothing_GT = material.logprobs_GT, torch.zeros_like(material.advantages_GT)
    alone_GT = material.algorithm.objective.weights(material.trained_GT, max_tokens=material.max_tokens)
    rows = [slice(row, row + 1) for row in range(len(at))]
    return {
        "share": float(material.loss(at)[0]),
        "surrogate": float(material.loss(at, anchored=False)[0]),
        "kl": float(material.loss(at, advantages_GT=nothing_GT)[0]),
        "alone": float(material.loss(at, weights_GT=alone_GT.to(at.dtype))[0]),
        "completions": [float(material.loss(at, rows=row)[0]) for row in rows],
    }


def _gradient_stage(material: Material) -> dict[str, Any]:
    """How the loss changes with the log-probs of each completion's tokens; below 0, the update makes it more likely."""
    whole_GT, surrogate_GT = material.gradient(), material.gradient(anchored=False)
    completions = []
    for row, length in enumerate(material.lengths):
        tokens, alone = whole_GT[row, :length], surrogate_GT[row, :length]
        moved = (material.advantages_GT[row, :length] != 0) & material.trained_GT[row, :length]
        completions.append(
            {
                "sum": float(tokens.sum()),
                "mean": float(tokens.mean()),
                "surrogate_sum": float(alone.sum()),
                "weight": float(material.weights_GT[row, :length].sum()),
                "dead_tokens": int((moved & (alone == 0)).sum()),
            }
        )
    return {"completions": completions}


def _update_stage(recorded: Recorded) -> dict[str, Any]:
    """How probable the completions were before and after the update; a run looks again at one group in ten steps."""
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
        "watched": [{"step": step, "group": group} for step, group in recorded.watched],
        "reason": None if looked else _not_watched(recorded),
    }


def _exp(logprob: float | None) -> float | None:
    return None if logprob is None else float(torch.tensor(logprob, dtype=torch.float64).exp())


def _not_watched(recorded: Recorded) -> str:
    rule = "In steps 1, 11, 21, ... the run reads the first group with a signal again after the update, not this one."
    near = ", ".join(f"step {step} group {group}" for step, group in recorded.watched)
    return f"{rule} Nearby: {near}." if near else f"{rule} None is near this step."
