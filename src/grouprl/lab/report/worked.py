"""From the rewards of a group to its advantages, with every number on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from grouprl.algorithms.advantages import CompletionAdvantage, Statistics, Std, group_statistics
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import options
from grouprl.types import UserError

# Advantages are recorded as float32.
_ROUNDING = 1e-5
_OTHER_SETTINGS = (
    "With the settings in config.yaml, these rewards do not give the recorded advantages. The step used other "
    "settings, such as before a fork, or a class of your own (`own`), or config.yaml or the record was changed."
)


@dataclass(frozen=True)
class CompletionParts:
    """What a completion's advantage is made of."""

    group: int
    reward: float | None  # None = invalid
    kept: bool = True  # whether its group was learned from
    length: int = 1  # in tokens


@dataclass(frozen=True)
class Spread:
    """Mean and deviation of some rewards, with what they were computed from; None without a valid reward."""

    count: int  # of the valid ones
    sum: float
    mean: float | None
    sum_of_squares: float  # of the deviations from the mean
    divided_by: int  # count, or count - 1 for the sample deviation, at least 1
    deviation: float | None
    signal: bool  # whether two of them differ

    @staticmethod
    def of(rewards: Sequence[float | None], std: Std) -> Spread:
        """The spread of these rewards; it skips None."""
        valid = [reward for reward in rewards if reward is not None]
        divided_by = max(len(valid) - (std == "sample"), 1)
        if not valid:
            return Spread(0, 0.0, None, 0.0, divided_by, None, signal=False)
        total = exact_sum(valid)
        if not max(valid) > min(valid):  # the mean of three 0.7 need not be 0.7 in floating point
            return Spread(len(valid), total, valid[0], 0.0, divided_by, 0.0, signal=False)
        statistics = group_statistics(_tensor(valid), torch.zeros(len(valid), dtype=torch.int64), std=std)
        mean = float(statistics.mean[0])
        squares = exact_sum([(reward - mean) * (reward - mean) for reward in valid])  # ** raises where * gives infinity
        return Spread(len(valid), total, mean, squares, divided_by, float(statistics.deviation[0]), signal=True)


def exact_sum(values: Sequence[float]) -> float:
    """The sum of the values without rounding; infinity or NaN where a float cannot hold it."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large on the way, or infinity less infinity
        return sum(values, 0.0)


def numbers(values: Sequence[float | None], valid: Sequence[float | None] | None = None) -> list[float | None]:
    """The values with None for NaN, and where `valid` has None or NaN."""
    rows = zip(values, values if valid is None else valid, strict=True)
    return [None if any(value is None or math.isnan(value) for value in row) else row[0] for row in rows]


def deviation_kind(algorithm: Algorithm) -> Std:
    """Which deviation is shown of rewards: the algorithm's, or the population's where it uses none."""
    return options(algorithm).get("std", "population")  # type: ignore[no-any-return]


def of_step(algorithm: Algorithm) -> bool:
    """Whether a completion is compared with all completions of its step, not with its own group alone."""
    return algorithm.advantage.of_batch and _by_rewards(algorithm)


def compared(
    rewards: Sequence[float | None],
    algorithm: Algorithm,
    others: Sequence[Sequence[float | None]] = (),
    *,
    kept: bool = True,
    component: bool = False,
    lengths: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The arithmetic of a group's advantages.

    Args:
        rewards: of the group's completions; None or NaN = invalid.
        algorithm: how they are compared.
        others: rewards of the other groups that were learned from, where the algorithm compares with those (`of_step`).
        kept: whether this group was learned from.
        component: whether these are the values of one reward function of several that are compared by themselves.
        lengths: tokens of the completions; None = all of one length.

    Returns:
        `name`, `formula`, `sentence` and `fields` of the comparison. Of the group's valid rewards the fields of
        `Spread`; those of the batch as `batch`, None where they play no part. `mean_of` and `deviation_of`: "group" or
        "batch", whose mean and deviation the algorithm uses; None = it uses none, or another number. By completion:
        `rewards`; `deviations` from the group's mean; `squares` of the distances to the mean of `deviation_of`;
        `baselines`, what is subtracted; `gaps`, the rest; `divisors`; `advantages`. `without_signal`: why the
        advantages are 0, None where there is a signal. Where it takes more than one reward for each completion to make
        the advantages, the last four by completion are None; so are they where the algorithm cannot compare such
        rewards, and `without_signal` says why.
    """
    valued = numbers(rewards)
    groups = [valued, *map(numbers, others)] if kept else [numbers(row) for row in others]
    std, fields = deviation_kind(algorithm), asdict(algorithm.advantage)
    spread, by_rewards = Spread.of(valued, std), component or _by_rewards(algorithm)
    batch = None
    if by_rewards and {"batch_mean", "batch_std"} & {fields["baseline"], fields["scale"]}:
        batch = Spread.of([reward for row in groups for reward in row], std)
    mean_of = {"mean": "group", "leave_one_out": "group", "batch_mean": batch and "batch"}.get(fields["baseline"])
    deviation_of = {"group_std": "group", "batch_std": batch and "batch"}.get(fields["scale"])
    middle = batch.mean if batch and deviation_of == "batch" else spread.mean
    return {
        "name": algorithm.name,
        "formula": algorithm.advantage.formula,
        "sentence": comparison_sentence(algorithm),
        "fields": fields,
        **vars(spread),
        "std": std,
        "batch": None if batch is None else vars(batch),
        "mean_of": mean_of,
        "deviation_of": deviation_of,
        "rewards": valued,
        "deviations": _distances(valued, spread.mean),
        "squares": [None if gap is None else gap * gap for gap in _distances(valued, middle)],
        **(_by_completion(valued, groups, algorithm, lengths, kept=kept) if by_rewards else _UNKNOWN),
    }


_UNKNOWN = dict.fromkeys(("baselines", "gaps", "divisors", "advantages", "without_signal"))


def comparison_sentence(algorithm: Algorithm) -> str:
    """What the advantage of a completion is made of."""
    constant = asdict(algorithm.advantage).get("baseline_constant")
    said = "" if constant is None else f" The constant is {constant:g}."
    return f"The advantage of a completion with reward r is {algorithm.advantage.formula}.{said}"


def against_record(
    group: int, scored: Sequence[CompletionParts], recorded: Sequence[float], algorithm: Algorithm
) -> dict[str, Any]:
    """A group's `compared`, beside the advantages that the run recorded.

    Args:
        group: its index in the step.
        scored: the completions of the step where the algorithm compares with those (`of_step`), else of the group.
        recorded: the advantage of each completion of the group, in their order.
        algorithm: the run's.

    Returns:
        The keys of `compared`; `recorded`; `dropped`, whether the algorithm leaves the group out; `agree`, None where
        the advantages are not made of the rewards alone, and, unless it is true, `why`.
    """
    groups: dict[int, list[CompletionParts]] = {}
    for part in scored:
        groups.setdefault(part.group, []).append(part)
    others = [[part.reward for part in row] for index, row in groups.items() if row[0].kept and index != group]
    kept, lengths = groups[group][0].kept, [part.length for part in groups[group]]
    comparison = compared([part.reward for part in groups[group]], algorithm, others, kept=kept, lengths=lengths)
    ours = comparison["advantages"]
    agree = None if ours is None else _close([advantage or 0.0 for advantage in ours], recorded)
    why = (ours is None and comparison["without_signal"]) or " ".join(_reasons(algorithm)) or _OTHER_SETTINGS
    return {
        **comparison,
        "recorded": list(recorded),
        "dropped": not kept,
        "agree": agree,
        "why": None if agree else why,
    }


def compared_rewards(
    rewards_N: torch.Tensor, groups_N: torch.Tensor, algorithm: Algorithm, lengths_N: torch.Tensor | None = None
) -> Statistics:
    """Baseline, divisor and signal of each reward; where a token's credit begins with its group, that comparison."""
    advantage = algorithm.advantage
    if isinstance(advantage, CompletionAdvantage):
        return advantage.compared(rewards_N, groups_N, lengths_N)
    settings = {
        name: value for name, value in options(algorithm).items() if name in ("baseline", "scale", "std", "eps")
    }
    return group_statistics(rewards_N, groups_N, **settings)


def _by_completion(
    valued: Sequence[float | None],
    groups: Sequence[Sequence[float | None]],
    algorithm: Algorithm,
    lengths: Sequence[int] | None,
    *,
    kept: bool,
) -> dict[str, Any]:
    """What is subtracted from each reward and what divides the rest; `own` is the first group, where it is `kept`."""
    if not kept:
        return {
            **dict.fromkeys(("baselines", "gaps", "divisors"), [None] * len(valued)),
            "advantages": numbers([0.0] * len(valued), valued),
            "without_signal": "The algorithm drops this group: it is not in the update.",
        }
    rewards_N = _tensor([reward for row in groups for reward in row])
    groups_N = torch.tensor([index for index, row in enumerate(groups) for _ in row])
    lengths_N = None if lengths is None or len(groups) > 1 else torch.tensor(lengths)  # no batch is weighted by lengths
    try:
        statistics, size = compared_rewards(rewards_N, groups_N, algorithm, lengths_N), len(valued)
    except UserError as error:
        return {**_UNKNOWN, "without_signal": str(error)}
    advantages = statistics.advantages(rewards_N)[:size].tolist()
    return {
        "baselines": numbers(statistics.baseline_N[:size].tolist(), valued),
        "gaps": numbers((rewards_N - statistics.baseline_N)[:size].tolist(), valued),
        "divisors": numbers(statistics.divisor_N[:size].tolist(), valued),
        "advantages": numbers(advantages, valued),
        "without_signal": None if bool(statistics.signal_N[:size].any()) else _without_signal(valued, algorithm),
    }


def _without_signal(rewards: Sequence[float | None], algorithm: Algorithm) -> str:
    valid = [reward for reward in rewards if reward is not None]
    if not valid:
        return "No reward of this group is valid: every advantage is exactly 0."
    if len(valid) == 1:
        return "Only one reward is valid: there is no other to compare it with, and its advantage is exactly 0."
    if max(valid) > min(valid):
        return f"{algorithm.name} finds no signal in these rewards: every advantage is exactly 0."
    return f"All {len(valid)} valid rewards are equal: every advantage is exactly 0, and the group has no signal."


def _by_rewards(algorithm: Algorithm) -> bool:
    """Whether one reward for each completion is all that its advantage is made of (a KL in the reward apart)."""
    advantage = algorithm.advantage
    if not {"algorithm", "advantage"}.isdisjoint(dict(algorithm.missing)):
        return False
    if isinstance(advantage, CompletionAdvantage):
        return advantage.reward_mix == "sum_then_normalise"
    return advantage.credit == "token" and not advantage.of_batch and algorithm.critic is None


def _distances(rewards: Sequence[float | None], middle: float | None) -> list[float | None]:
    return [None if reward is None or middle is None else reward - middle for reward in rewards]


def _reasons(algorithm: Algorithm) -> Iterator[str]:
    by_token, settings = algorithm.advantage.credit == "token", options(algorithm)
    if missing_class := dict(algorithm.missing).get("advantage"):
        yield f"The class {missing_class.split()[0]} computed the advantages; this page does not run it."
    if algorithm.critic is not None:
        yield "The baseline is the critic's prediction before each token, not a mean of rewards."
    if algorithm.advantage.credit == "step":
        yield (
            "Each reasoning step has a reward, normalized over all reasoning steps of the group. A token gets the sum "
            "over the steps that end at or after it. The record has the mean over the tokens."
        )
    if settings.get("reward_mix") == "normalise_then_sum":
        yield "The values of each reward function are normalized separately; then the advantages are added up."
    if algorithm.kl is not None and algorithm.kl.kl_in == "reward":
        yield "The KL to the reference is part of the reward in this run; the rewards shown here exclude it."
    if by_token and settings["gamma"] != 1:
        yield f"Later rewards count less: each token is discounted by {settings['gamma']:g}."
    if by_token and algorithm.advantage.of_batch:
        yield "Mean and deviation are over all tokens of the step, so longer completions count more."
    if by_token and algorithm.group_filter.mask_overlong:
        yield "Truncated completions are masked: their advantage is 0."


def _close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return all(abs(a - b) <= _ROUNDING * max(1.0, abs(b)) for a, b in zip(ours, theirs, strict=True))


def _tensor(rewards: Sequence[float | None]) -> torch.Tensor:
    return torch.tensor([math.nan if reward is None else reward for reward in rewards], dtype=torch.float64)
