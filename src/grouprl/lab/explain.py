"""From the rewards of a group to its advantages, with all numbers on the way; `group_statistics` does the work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grouprl.algorithms import group_statistics, has_signal
from grouprl.algorithms.advantages import BatchAdvantage, CompletionAdvantage, ConstantAdvantage
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import part_options
from grouprl.report.worked import Spread, compared_rewards, exact_sum

# Those that compare whole completions by their rewards, and need no network for it.
COMPARING = tuple(name for name, one in NAMED.items() if isinstance(one.advantage, CompletionAdvantage))


def explained_advantages(rewards: Sequence[float], algorithms: Sequence[str]) -> dict[str, Any]:
    """What algorithms of `COMPARING` make of one group's rewards; NaN = invalid, and null in the answer."""
    return {
        "rewards": numbers(rewards),
        "valid": sum(not math.isnan(reward) for reward in rewards),
        "algorithms": {name: compared(rewards, NAMED[name]) for name in algorithms},
    }


def compared(rewards: Sequence[float], algorithm: Algorithm, others: Sequence[Sequence[float]] = ()) -> dict[str, Any]:
    """The arithmetic of a group's advantages.

    Args:
        rewards: of the group's completions; NaN = invalid.
        algorithm: one that compares whole completions.
        others: rewards of the other groups of the batch, for what is compared with the batch.

    Returns:
        `fields`; `advantages`, null where the reward is invalid; `degenerate` and `why`, where there is no signal;
        `mean` and `deviation`, null where the algorithm uses none, over `mean_of` and `deviation_of`; `worked`, the
        same number by number: `n`, `sum` and `mean` of the rewards; of each completion what is subtracted
        (`baselines`), the rest (`deviations`), and the square of its distance to the mean (`squares`); their
        `sum_of_squares`, what that is `divided_by`, `variance`, `deviation`, and the `divisor` with eps.
    """
    groups = [list(rewards), *map(list, others)]
    rewards_N = torch.tensor([reward for group in groups for reward in group], dtype=torch.float64)
    group_ids_N = torch.tensor([index for index, group in enumerate(groups) for _ in group])
    found, options = compared_rewards(rewards_N, group_ids_N, algorithm), part_options(algorithm.advantage)
    own, batch = slice(0, len(rewards)), options["baseline"] == "batch_mean"
    final = found.advantages(rewards_N)[own].tolist()
    gaps_N = torch.where(found.signal_N, rewards_N - found.baseline_N, 0.0)
    deviations = gaps_N[own].float().tolist()
    why = _degenerate(rewards_N, group_ids_N, algorithm)
    centred = _centre(rewards_N if batch else rewards_N[own])
    mean = centred["mean"] if options["baseline"] in ("mean", "leave_one_out", "batch_mean") else None
    spread = _spread(algorithm, rewards_N, group_ids_N)
    return {
        "name": algorithm.name,
        "fields": options,
        "advantages": numbers(final, rewards),
        "degenerate": why is not None,
        "why": why,
        "mean": mean,
        "mean_of": None if mean is None else "batch" if batch else "group",
        "deviation": spread["deviation"],
        "deviation_of": None if options["scale"] == "none" else options["scale"].removesuffix("_std"),
        "worked": {
            **centred,
            "rewards": numbers(rewards),
            "baselines": numbers([reward - gap for reward, gap in zip(rewards, deviations, strict=True)]),
            "deviations": numbers(deviations, rewards),
            **spread,
            "advantages": numbers(final, rewards),
        },
    }


def comparison_sentence(algorithm: Algorithm) -> str:
    """What the advantage of a completion is made of."""
    known = part_options(algorithm.advantage)
    less = {
        "mean": "less the mean of its group",
        "leave_one_out": "less the mean of the other completions of its group",
        "batch_mean": "less the mean of the batch",
        "constant": f"less the constant {known.get('baseline_constant', 0.0):g}",
        "none": "as it is",
    }.get(known["baseline"], f"as {algorithm.advantage.formula}")
    over = {"none": "", "group_std": ", over the deviation of the group", "batch_std": ", over that of the batch"}
    return f"The advantage is the reward {less}{over[known['scale']]}."


def numbers(values: Sequence[float], valid: Sequence[float] | None = None) -> list[float | None]:
    """The values with None for NaN, and where `valid` has NaN."""
    rows = zip(values, values if valid is None else valid, strict=True)
    return [None if math.isnan(value) or math.isnan(other) else value for value, other in rows]


def _centre(rewards_M: Tensor) -> dict[str, Any]:
    spread = Spread.of(_valid(rewards_M), "population")
    return {"n": spread.count, "sum": spread.sum, "mean": spread.mean}


def _spread(algorithm: Algorithm, rewards_N: Tensor, group_ids_N: Tensor) -> dict[str, Any]:
    """Of the set whose deviation divides: the squared distances to its mean, and what is made of them."""
    known = part_options(algorithm.advantage)
    if known["scale"] == "none":
        return dict.fromkeys(("squares", "sum_of_squares", "divided_by", "variance", "deviation", "divisor"))
    own_N, whole = group_ids_N == 0, known["scale"] == "batch_std"
    set_N = torch.ones_like(own_N) if whole else own_N
    centre = group_statistics(rewards_N, group_ids_N, baseline="batch_mean" if whole else "mean", scale="none")
    squares_N = centre.advantages(rewards_N).double().square()
    spread = Spread.of(_valid(rewards_N[set_N]), known["std"])
    deviation = spread.deviation or 0.0
    return {
        "squares": numbers(squares_N[own_N].tolist(), rewards_N[own_N].tolist()),
        "sum_of_squares": exact_sum(squares_N[set_N].tolist()),
        "divided_by": spread.divided_by,
        "variance": spread.sum_of_squares / spread.divided_by,
        "deviation": deviation,
        "divisor": deviation + known["eps"],
    }


def _degenerate(rewards_N: Tensor, group_ids_N: Tensor, algorithm: Algorithm) -> str | None:
    """Why the first group has no signal; None where it has."""
    valid = _valid(rewards_N[group_ids_N == 0])
    if not valid:
        return "No reward of this group is valid: every advantage is exactly 0."
    advantage = algorithm.advantage
    whole = isinstance(advantage, BatchAdvantage)
    constant = isinstance(advantage, ConstantAdvantage) or (whole and not advantage.of_batch)
    if constant or bool(has_signal(rewards_N, torch.zeros_like(group_ids_N) if whole else group_ids_N)[0]):
        return None
    if len(valid) == 1:
        return "Only one reward is valid: there is nothing to compare it with, and its advantage is exactly 0."
    return f"All {len(valid)} valid rewards are equal: every advantage is exactly 0, and the group teaches nothing."


def _valid(rewards_M: Tensor) -> list[float]:
    return [reward for reward in rewards_M.tolist() if not math.isnan(reward)]
