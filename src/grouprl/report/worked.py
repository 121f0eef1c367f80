"""A group's statistics worked out in numbers: from its rewards to its advantages, by the run's algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grouprl.algorithms.advantages import CompletionAdvantage
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.statistics import Statistics, Std, group_statistics
from grouprl.config.algorithm import options

# Advantages are recorded as float32.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Scored:
    """What a completion's advantage is made of."""

    group: int
    reward: float | None  # None = invalid
    earned: float | None = None  # the reward before the length penalty; None = the same
    kept: bool | None = None  # whether its group was learned from; None = not recorded


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
        """Of these rewards, None among them left out."""
        valid = [reward for reward in rewards if reward is not None]
        divided_by = max(len(valid) - (std == "sample"), 1)
        if not valid:
            return Spread(0, 0.0, None, 0.0, divided_by, None, signal=False)
        total, signal = exact_sum(valid), max(valid) > min(valid)
        # The mean of three 0.7 need not be 0.7 in floating point.
        mean = total / len(valid) if signal else valid[0]
        gaps = [reward - mean for reward in valid]
        squares = exact_sum([gap * gap for gap in gaps])  # ** raises where * gives infinity
        return Spread(len(valid), total, mean, squares, divided_by, math.sqrt(squares / divided_by), signal)


def exact_sum(values: Sequence[float]) -> float:
    """The sum of the values without rounding; infinity or NaN where a float cannot hold it."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large on the way, or infinity less infinity
        return sum(values, 0.0)


def deviation_kind(algorithm: Algorithm) -> Std:
    """Which deviation is shown of rewards: the algorithm's, or the population's where it uses none."""
    return options(algorithm).get("std", "population")  # type: ignore[no-any-return]


def of_step(algorithm: Algorithm) -> bool:
    """Whether a completion is compared with all completions of its step, not with its own group alone."""
    return _by_rewards(algorithm) and of_batch(algorithm)


def worked(group: int, scored: Sequence[Scored], recorded: Sequence[float], algorithm: Algorithm) -> dict[str, Any]:
    """A group's statistics, and the advantages that `group_advantages` makes of them beside the recorded ones.

    Args:
        group: its index in the step.
        scored: the completions of the step where the algorithm compares with those (`of_step`), else of the group.
        recorded: the advantage of each completion of the group, in their order.
        algorithm: the run's.

    Returns:
        Of the valid rewards the fields of `Spread`; by completion `rewards`, `valid`, `deviations` (from the mean),
        `baselines` (what is subtracted), `advantages` and `recorded`; `divisor`, and `step` with count, mean and
        deviation of the step's rewards (None where they play no part); `dropped`, whether the algorithm leaves the
        group out; `agree` and, if they do not, `why`. Where it takes more than the completions' rewards to make the
        advantages, `advantages`, the baselines, the divisor and `agree` are None.
    """
    rewards = [one.reward for one in scored if one.group == group]
    std = deviation_kind(algorithm)
    own, kept = Spread.of(rewards, std), _kept(scored, algorithm)
    batch = None
    if of_step(algorithm):
        batch = Spread.of([one.reward for one, keep in zip(scored, kept, strict=True) if keep], std)
    advantages = _advantages(group, scored, kept, algorithm) if _by_rewards(algorithm) else None
    agree = None if advantages is None else _close(advantages, recorded)
    return {
        **vars(own),
        "rewards": rewards,
        "valid": [reward is not None for reward in rewards],
        "deviations": [None if reward is None or own.mean is None else reward - own.mean for reward in rewards],
        **{name: options(algorithm).get(name) for name in ("baseline", "scale")},
        "std": std,
        "eps": options(algorithm).get("eps", 1e-6),
        "baselines": [_baseline(reward, own, batch, algorithm) for reward in rewards],
        "divisor": _divisor(own, batch, algorithm),
        "step": None if batch is None else {name: vars(batch)[name] for name in ("count", "mean", "deviation")},
        "dropped": not all(keep for one, keep in zip(scored, kept, strict=True) if one.group == group),
        "advantages": advantages,
        "recorded": list(recorded),
        "agree": agree,
        "why": None if agree else _why(algorithm),
    }


def _by_rewards(algorithm: Algorithm) -> bool:
    """Whether one reward for each completion is all that its advantage is made of (a KL in the reward apart)."""
    advantage = algorithm.advantage
    if isinstance(advantage, CompletionAdvantage):
        return advantage.reward_mix == "sum_then_normalise"
    return advantage.credit == "token" and not advantage.of_batch and algorithm.critic is None


def of_batch(algorithm: Algorithm) -> bool:
    """Whether mean or deviation are those of the batch."""
    return algorithm.advantage.of_batch


def _kept(scored: Sequence[Scored], algorithm: Algorithm) -> list[bool]:
    """Whether each group was learned from; of an older record by the rewards before the length penalty."""
    recorded = [one.kept for one in scored if one.kept is not None]
    if len(recorded) == len(scored):
        return recorded
    judged = [one.reward if one.earned is None else one.earned for one in scored]
    groups = [one.group for one in scored]
    members = {group: [reward for reward, own in zip(judged, groups, strict=True) if own == group] for group in groups}
    rewards = [[math.nan if reward is None else reward for reward in row] for row in members.values()]
    kept = dict(zip(members, algorithm.groups.kept(rewards), strict=True))
    return [kept[group] for group in groups]


def _advantages(group: int, scored: Sequence[Scored], kept: Sequence[bool], algorithm: Algorithm) -> list[float]:
    rewards_N, groups_N = _tensor([one.reward for one in scored]), torch.tensor([one.group for one in scored])
    kept_N, own_N = torch.tensor(kept), groups_N == group
    advantages_N = torch.zeros(len(scored))
    advantages_N[kept_N] = compared_rewards(rewards_N[kept_N], groups_N[kept_N], algorithm).advantages(
        rewards_N[kept_N]
    )
    advantages: list[float] = advantages_N[own_N].tolist()
    return advantages


def compared_rewards(rewards_N: torch.Tensor, groups_N: torch.Tensor, algorithm: Algorithm) -> Statistics:
    """Baseline, divisor and signal of each reward; where a token's credit begins with its group, that comparison."""
    advantage = algorithm.advantage
    if isinstance(advantage, CompletionAdvantage):
        return advantage.statistics(rewards_N, groups_N)
    found = {name: value for name, value in options(algorithm).items() if name in ("baseline", "scale", "std", "eps")}
    return group_statistics(rewards_N, groups_N, **found)


def _baseline(reward: float | None, own: Spread, batch: Spread | None, algorithm: Algorithm) -> float | None:
    if reward is None or not _by_rewards(algorithm):
        return None
    baseline = options(algorithm)["baseline"]
    if baseline == "leave_one_out":
        return (own.sum - reward) / (own.count - 1) if own.count > 1 else None
    if baseline == "batch_mean":
        return None if batch is None else batch.mean
    return own.mean if baseline == "mean" else options(algorithm).get("baseline_constant", 0.0)


def _divisor(own: Spread, batch: Spread | None, algorithm: Algorithm) -> float | None:
    if not _by_rewards(algorithm):
        return None
    known = options(algorithm)
    if known["scale"] == "none":
        return 1.0
    spread = own if known["scale"] == "group_std" else batch
    return None if spread is None or spread.deviation is None else spread.deviation + float(known["eps"])


def _why(algorithm: Algorithm) -> str:
    reasons = " ".join(_reasons(algorithm))
    return reasons or (
        "These rewards do not give the recorded advantages with the settings in config.yaml: the step was made with "
        "others, as before a fork, or one of the two files was changed."
    )


def _reasons(algorithm: Algorithm) -> Iterator[str]:
    by_token, known = algorithm.advantage.credit == "token", options(algorithm)
    if algorithm.critic is not None:
        yield "The baseline is what a critic expected before each token, not a mean of rewards."
    if algorithm.advantage.credit == "step":
        yield (
            "Each step of a completion has a reward: these are normalised over all steps of the group, and a token "
            "gets the sum over the steps that end at or after it. What is recorded is the mean over the tokens."
        )
    if known.get("reward_mix") == "normalise_then_sum":
        yield "Each reward function's values are normalised by themselves, and the advantages are then added up."
    if algorithm.kl is not None and algorithm.kl.kl_in == "reward":
        yield "The KL to the reference is part of the reward in this run, and the rewards shown here leave it out."
    if by_token and known["gamma"] != 1:
        yield f"What comes later counts less: each token is discounted by {known['gamma']:g}."
    if by_token and of_batch(algorithm):
        yield "Mean and deviation are those over all tokens of the step, so that longer completions count more."
    if by_token and algorithm.groups.mask_overlong:
        yield "Completions that were cut at the limit are not learned from: their advantage is 0."


def _close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return all(abs(a - b) <= _ROUNDING * max(1.0, abs(b)) for a, b in zip(ours, theirs, strict=True))


def _tensor(rewards: Sequence[float | None]) -> torch.Tensor:
    return torch.tensor([math.nan if reward is None else reward for reward in rewards], dtype=torch.float64)
