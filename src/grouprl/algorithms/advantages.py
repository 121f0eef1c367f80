"""Advantages of whole completions: (reward - baseline) / deviation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grouprl.algorithms.credit import Advantage, BatchRewards, Credit
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
        rewards_N: [N] rewards; NaN = invalid: no statistic includes it, and its advantage is exactly 0.
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
    """All tokens of a completion share one advantage, which compares its reward with other rewards."""

    credit: Literal["completion"] = option("completion", "unit with an advantage of its own: the whole completion")
    reward_mix: Mix = option(
        "sum_then_normalise", "with several rewards: the advantage of their sum, or the sum of their advantages"
    )

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """Returns baseline, divisor and signal of each completion of a batch; NaN = invalid reward."""
        raise NotImplementedError

    def compare(
        self, rewards_N: Tensor, components: Mapping[str, Tensor], weights: Mapping[str, float], groups_N: Tensor
    ) -> Tensor:
        """Computes [N] float32 advantages: of the rewards' sum, or the weighted sum of each reward's own advantages.

        Args:
            rewards_N: [N] float64 totals; NaN = invalid.
            components: [N] float64 values of each reward by name, unweighted; NaN = does not apply.
            weights: weight of each reward in the sum, by name.
            groups_N: [N] integers; rows with the same integer form a group.
        """
        if self.reward_mix == "sum_then_normalise":
            return self.statistics(rewards_N, groups_N).advantages(rewards_N)
        advantages_N = torch.zeros(len(groups_N))
        for name, weight in weights.items():
            alone = self.statistics(components[name], groups_N).advantages(components[name])
            advantages_N = advantages_N + weight * alone
        return advantages_N

    def assign(self, batch: BatchRewards) -> Credit:
        """Gives every token of a completion the completion's advantage."""
        rewards_N = batch.rewards_N - batch.kl_NT.sum(1)
        advantages_N = self.compare(rewards_N, batch.components, batch.weights, batch.groups_N)
        return Credit(advantages_N[:, None] * batch.mask_NT)


@dataclass(frozen=True)
class GroupAdvantage(CompletionAdvantage):
    """Compares a completion with its own group; in GRPO this replaces the critic."""

    compares_totals: ClassVar[bool] = True

    baseline: Literal["mean", "leave_one_out"] = option(
        "mean", "subtracted from a reward: mean of the group, or of its other completions"
    )
    scale: Scale = option("group_std", "divisor: deviation of the group, of the batch, or none")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """See `group_statistics`."""
        return group_statistics(
            rewards_N, groups_N, baseline=self.baseline, scale=self.scale, std=self.std, eps=self.eps
        )


@dataclass(frozen=True)
class BatchAdvantage(CompletionAdvantage):
    """Compares a completion with the whole batch, which is treated as one group."""

    baseline: Literal["batch_mean", "none"] = option(
        "batch_mean", "subtracted from a reward: mean of the batch, or nothing"
    )
    scale: Literal["batch_std", "none"] = option("none", "divisor: deviation of the batch, or none")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """See `group_statistics`. With neither mean nor deviation of the batch, equal rewards have a signal too."""
        batch_N = torch.zeros_like(groups_N)
        found = group_statistics(
            rewards_N, batch_N, baseline=self.baseline, scale=self.scale, std=self.std, eps=self.eps
        )
        return found if self.of_batch else replace(found, signal_N=~rewards_N.isnan())


@dataclass(frozen=True)
class ConstantAdvantage(CompletionAdvantage):
    """Subtracts a constant from the reward (REINFORCE, Williams 1992), so equal rewards have a signal too."""

    baseline: Literal["constant"] = option("constant", "subtracted from a reward: baseline_constant")
    scale: Literal["none"] = option("none", "no divisor")
    reward_mix: Literal["sum_then_normalise"] = option(
        "sum_then_normalise", "with several rewards: the advantage of their sum"
    )
    baseline_constant: float = option(0.0, "baseline of REINFORCE: this number")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """Uses the constant as baseline; mean and deviation of the group are there for the page alone."""
        found = group_statistics(rewards_N, groups_N, baseline="none", scale="none")
        baseline_N = torch.full_like(found.mean, self.baseline_constant)
        return replace(found, baseline_N=baseline_N, signal_N=~rewards_N.isnan())
