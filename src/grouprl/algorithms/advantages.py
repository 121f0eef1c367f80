"""Advantages of whole completions: the reward less a baseline, over a deviation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grouprl.algorithms.credit import Advantage, Credit, Earned
from grouprl.algorithms.option import option
from grouprl.algorithms.statistics import Baseline, Scale, Statistics, Std, group_statistics

Mix = Literal["sum_then_normalise", "normalise_then_sum"]


def group_advantages(
    rewards_N: Tensor,
    group_ids_N: Tensor,
    *,
    baseline: Baseline = "mean",
    scale: Scale = "group_std",
    std: Std = "population",
    eps: float = 1e-6,
) -> Tensor:
    """Advantage of each completion: (reward - baseline) / (deviation + eps).

    GRPO's z-score is the default (DeepSeekMath, arXiv:2402.03300, 4.1.2); `scale="none"` is Dr.GRPO's
    (arXiv:2503.20783), `baseline="leave_one_out", scale="none"` is RLOO's (arXiv:2402.14740).

    Args:
        rewards_N: [N] rewards; NaN = invalid: left out of every statistic, advantage exactly 0.
        group_ids_N: [N] integers; rows with the same id are one group, in any order, of any size.
        baseline, scale, std, eps: as in `group_statistics`.

    Returns:
        [N] float32. A group whose valid rewards are all equal, or with fewer than 2 valid, carries no signal
        and gets exactly 0, whatever the baseline.

    Raises:
        ValueError: shapes differ, or an option is unknown.
    """
    found = group_statistics(rewards_N, group_ids_N, baseline=baseline, scale=scale, std=std, eps=eps)
    return found.advantages(rewards_N)


@dataclass(frozen=True)
class CompletionAdvantage(Advantage):
    """One advantage for all tokens of a completion, from its reward and those it is compared with."""

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """Baseline, divisor and signal of each completion of a batch; NaN = invalid reward."""
        raise NotImplementedError

    @property
    def mixes_advantages(self) -> bool:
        """Whether several rewards are each compared by themselves, and their advantages added."""
        return False

    def compare(
        self, rewards_N: Tensor, components: Mapping[str, Tensor], weights: Mapping[str, float], groups_N: Tensor
    ) -> Tensor:
        """[N] float32 advantages of the rewards' sum, or the weighted sum of those that each reward alone would give.

        Args:
            rewards_N: [N] float64 totals; NaN = invalid.
            components: [N] float64 of each reward by name, unweighted; NaN = does not apply.
            weights: of each reward in the sum.
            groups_N: [N] integers; rows with the same one are a group.
        """
        if not self.mixes_advantages:
            return self.statistics(rewards_N, groups_N).advantages(rewards_N)
        advantages_N = torch.zeros(len(groups_N))
        for name, weight in weights.items():
            alone = self.statistics(components[name], groups_N).advantages(components[name])
            advantages_N = advantages_N + weight * alone
        return advantages_N

    def assign(self, earned: Earned) -> Credit:
        """The completion's advantage at each of its tokens."""
        rewards_N = earned.rewards_N - earned.kl_NT.sum(1)
        advantages_N = self.compare(rewards_N, earned.components, earned.weights, earned.groups_N)
        return Credit(advantages_N[:, None] * earned.mask_NT)


@dataclass(frozen=True)
class GroupAdvantage(CompletionAdvantage):
    """A completion is compared with its own group: what replaces the critic in GRPO."""

    credit: Literal["completion"] = option("completion", "one advantage for the whole completion")
    baseline: Literal["mean", "leave_one_out"] = option("mean", "subtracted: mean of the group, or of its others")
    scale: Scale = option("group_std", "divides: deviation of the group, of the batch, or nothing")
    std: Std = option("population", "the deviation divides the squares by n, or by n - 1")
    eps: float = option(1e-6, "added to the deviation", low=0.0, high=1.0)
    reward_mix: Mix = option("sum_then_normalise", "of several rewards: advantage of the sum, or sum of advantages")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == "none":
            self.without_effect("std", "eps", with_option="scale")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """See `group_statistics`."""
        return group_statistics(
            rewards_N, groups_N, baseline=self.baseline, scale=self.scale, std=self.std, eps=self.eps
        )

    @property
    def mixes_advantages(self) -> bool:
        """See `CompletionAdvantage.mixes_advantages`."""
        return self.reward_mix == "normalise_then_sum"

    @property
    def compares_totals(self) -> bool:
        """Equal sums may have different parts."""
        return not self.mixes_advantages

    @property
    def of_batch(self) -> bool:
        """See `Advantage.of_batch`."""
        return self.scale == "batch_std"

    @property
    def formula(self) -> str:
        """See `Advantage.formula`."""
        others = {"mean": "mean(group)", "leave_one_out": "mean(others of the group)"}[self.baseline]
        return _formula(others, self.scale, self.reward_mix)

    @property
    def refuses_kl(self) -> str:
        """See `Advantage.refuses_kl`."""
        return _refuses_kl(self.scale, self.reward_mix)


@dataclass(frozen=True)
class BatchAdvantage(CompletionAdvantage):
    """A completion is compared with the whole batch, which is one group here."""

    credit: Literal["completion"] = option("completion", "one advantage for the whole completion")
    baseline: Literal["batch_mean", "none"] = option("batch_mean", "subtracted: mean of the batch, or nothing")
    scale: Literal["batch_std", "none"] = option("none", "divides: deviation of the batch, or nothing")
    std: Std = option("population", "the deviation divides the squares by n, or by n - 1")
    eps: float = option(1e-6, "added to the deviation", low=0.0, high=1.0)
    reward_mix: Mix = option("sum_then_normalise", "of several rewards: advantage of the sum, or sum of advantages")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == "none":
            self.without_effect("std", "eps", with_option="scale")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """See `group_statistics`; where neither mean nor deviation is asked for, equal rewards have a signal too."""
        found = group_statistics(
            rewards_N,
            torch.zeros_like(groups_N),
            baseline=self.baseline,
            scale=self.scale,
            std=self.std,
            eps=self.eps,
        )
        if self.baseline == "none" and self.scale == "none":
            return _less_a_constant(found, rewards_N, 0.0)
        return found

    @property
    def mixes_advantages(self) -> bool:
        """See `CompletionAdvantage.mixes_advantages`."""
        return self.reward_mix == "normalise_then_sum"

    @property
    def of_batch(self) -> bool:
        """See `Advantage.of_batch`."""
        return self.baseline == "batch_mean" or self.scale == "batch_std"

    @property
    def formula(self) -> str:
        """See `Advantage.formula`."""
        return _formula({"batch_mean": "mean(batch)", "none": ""}[self.baseline], self.scale, self.reward_mix)

    @property
    def refuses_kl(self) -> str:
        """See `Advantage.refuses_kl`."""
        return _refuses_kl(self.scale, self.reward_mix)


@dataclass(frozen=True)
class ConstantAdvantage(CompletionAdvantage):
    """The reward less a constant (REINFORCE, Williams 1992): equal rewards have a signal too."""

    credit: Literal["completion"] = option("completion", "one advantage for the whole completion")
    baseline: Literal["constant"] = option("constant", "subtracted: a constant")
    baseline_constant: float = option(0.0, "which")
    scale: Literal["none"] = option("none", "nothing divides")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """The constant as baseline; the mean and deviation of the group for a reader."""
        found = group_statistics(rewards_N, groups_N, baseline="none", scale="none")
        return _less_a_constant(found, rewards_N, self.baseline_constant)

    @property
    def formula(self) -> str:
        """See `Advantage.formula`."""
        return f"r - {self.baseline_constant:g}" if self.baseline_constant else "r"


def _less_a_constant(found: Statistics, rewards_N: Tensor, constant: float) -> Statistics:
    return Statistics(
        baseline_N=torch.full_like(found.mean, constant),
        divisor_N=torch.ones_like(found.mean),
        mean=found.mean,
        deviation=found.deviation,
        signal_N=~rewards_N.isnan(),
    )


def _formula(baseline: str, scale: Scale, mix: Mix) -> str:
    less = f"r - {baseline}" if baseline else "r"
    over = {"group_std": " / std(group)", "batch_std": " / std(batch)", "none": ""}[scale]
    one = f"({less}){over}" if over and baseline else f"{less}{over}"
    return one if mix == "sum_then_normalise" else f"sum over rewards of weight * ({one})"


def _refuses_kl(scale: Scale, mix: Mix) -> str:
    if mix == "normalise_then_sum":
        return "each reward is compared by itself: set kl_in=loss"
    if scale != "none":
        return "equal rewards would be divided by the noise of their KL: set scale=none, or credit=token"
    return ""
