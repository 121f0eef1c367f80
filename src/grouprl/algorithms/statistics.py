"""Statistics of groups of rewards: the baseline, divisor and signal of each completion's advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Baseline = Literal["mean", "leave_one_out", "batch_mean", "none"]
Scale = Literal["group_std", "batch_std", "none"]
Std = Literal["population", "sample"]


_ROUNDING = 2.0**-50  # four units in the last place of a float64


@dataclass(frozen=True)
class Statistics:
    """[N] float64 tensors: advantage = (reward - baseline) / divisor for groups with signal, else 0."""

    baseline_N: Tensor
    divisor_N: Tensor  # deviation + eps, or 1
    mean: Tensor  # [N] mean of the valid rewards of the row's group
    deviation: Tensor  # [N] standard deviation of the rewards of the row's group, or of the batch
    signal_N: Tensor  # bool: the reward is valid, and its group has two different rewards

    def normalized(self, rewards_N: Tensor) -> Tensor:
        """Returns [N] float64 advantages, exactly 0 without signal."""
        rewards_N = torch.where(rewards_N.isnan(), 0.0, rewards_N).double()
        return torch.where(self.signal_N, (rewards_N - self.baseline_N) / self.divisor_N, 0.0)

    def advantages(self, rewards_N: Tensor) -> Tensor:
        """Returns [N] float32 advantages, exactly 0 without signal."""
        return self.normalized(rewards_N).float()


def group_statistics(
    rewards_N: Tensor,
    group_ids_N: Tensor,
    *,
    baseline: Baseline = "mean",
    scale: Scale = "group_std",
    std: Std = "population",
    eps: float = 1e-6,
) -> Statistics:
    """Computes baseline, divisor and signal of each completion, from which `group_advantages` follows.

    Args:
        rewards_N: [N] rewards; NaN = invalid: no statistic includes it.
        group_ids_N: [N] integers; rows with the same id are one group, in any order, of any size.
        baseline: subtracted: the group's mean, the mean of the other group members, the batch's mean, nothing.
        scale: divides: the group's standard deviation, the batch's, nothing.
        std: "population" divides the squared deviations by n, "sample" by n - 1.
        eps: added to the deviation. Where the sum is no more than the rounding of the mean (2^-50 of it), the mean
            divides instead: rewards that differ in their last bits alone get advantages below 1e-15. Sums that cancel
            to about 0 (0.1 + 0.2 - 0.3 is 6e-17) have no such mean: without eps they count as different from 0.

    Raises:
        ValueError: shapes differ, or an option is unknown.
    """
    if rewards_N.ndim != 1 or rewards_N.shape != group_ids_N.shape:
        raise ValueError(
            f"expected rewards and group ids of one shape [N], got {tuple(rewards_N.shape)}, {tuple(group_ids_N.shape)}"
        )
    for name, got, allowed in (("baseline", baseline, Baseline), ("scale", scale, Scale), ("std", std, Std)):
        if got not in get_args(allowed):
            raise ValueError(f"{name}: got {got!r}, expected one of {', '.join(get_args(allowed))}")
    valid_N = ~torch.isnan(rewards_N)
    unique, group_of_N = torch.unique(group_ids_N, return_inverse=True)
    # float64: in float32 the mean of eight 0.7 differs from 0.7 in the last bit; divided by a deviation of
    # nearly 0, that gives advantages of tens.
    rewards_N64 = torch.where(valid_N, rewards_N, 0.0).double()
    valid_N64 = valid_N.double()

    def group_sum(values_N: Tensor) -> Tensor:
        return torch.zeros(len(unique), dtype=torch.float64, device=values_N.device).index_add_(0, group_of_N, values_N)

    count_N = group_sum(valid_N64)[group_of_N]
    sum_N = group_sum(rewards_N64)[group_of_N]
    mean_N = sum_N / count_N.clamp(min=1)
    batch_count = valid_N64.sum()
    batch_mean = rewards_N64.sum() / batch_count.clamp(min=1)
    baseline_N = {
        "mean": mean_N,
        "leave_one_out": (sum_N - rewards_N64) / (count_N - 1).clamp(min=1),
        "batch_mean": batch_mean.expand_as(mean_N),
        "none": torch.zeros_like(mean_N),
    }[baseline]

    freedom = 1.0 if std == "sample" else 0.0
    if scale == "batch_std":
        squares = ((rewards_N64 - batch_mean).square() * valid_N64).sum()
        deviation_N = (squares / (batch_count - freedom).clamp(min=1)).sqrt().expand_as(mean_N)
    else:
        squares_N = group_sum((rewards_N64 - mean_N).square() * valid_N64)[group_of_N]
        deviation_N = (squares_N / (count_N - freedom).clamp(min=1)).sqrt()
    divisor_N = torch.ones_like(mean_N)
    if scale != "none":
        # 0.1 + 0.2 and 0.3 differ: a deviation of a few last bits says nothing, and without eps it would say all.
        size_N = (batch_mean.expand_as(mean_N) if scale == "batch_std" else mean_N).abs()
        divisor_N = torch.where(deviation_N + eps <= size_N * _ROUNDING, size_N, deviation_N + eps)
    signal_N = valid_N & has_signal(rewards_N, group_ids_N)
    return Statistics(baseline_N, divisor_N, mean_N, deviation_N, signal_N)


def has_signal(rewards_N: Tensor, group_ids_N: Tensor) -> Tensor:
    """[N] bool: whether the row's group has at least two different valid rewards (max != min, exactly)."""
    unique, group_of_N = torch.unique(group_ids_N, return_inverse=True)
    rewards_N = rewards_N.double()  # integers have no infinity
    highest = rewards_N.new_full((len(unique),), -torch.inf)
    highest.scatter_reduce_(0, group_of_N, rewards_N.nan_to_num(nan=-torch.inf), "amax")
    lowest = rewards_N.new_full((len(unique),), torch.inf)
    lowest.scatter_reduce_(0, group_of_N, rewards_N.nan_to_num(nan=torch.inf), "amin")
    return (highest > lowest)[group_of_N]
