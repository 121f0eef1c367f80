"""Advantages: how much better a completion is than what its group (or batch) led one to expect."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from grouprl.algorithms.spec import Baseline, Centre, Scale, Std


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
        baseline: what is subtracted: the group's mean, the mean of the group's others, the batch's mean, nothing.
        scale: what divides: the group's standard deviation, the batch's, nothing.
        std: "population" divides the squared deviations by n, "sample" by n - 1.
        eps: added to the deviation.

    Returns:
        [N] float32. A group whose valid rewards are all equal, or with fewer than 2 valid, carries no signal
        and gets exactly 0, whatever the baseline.

    Raises:
        ValueError: shapes differ, or an option is unknown.
    """
    if rewards_N.ndim != 1 or rewards_N.shape != group_ids_N.shape:
        raise ValueError(
            f"expected rewards and group ids of one shape [N], got {tuple(rewards_N.shape)}, {tuple(group_ids_N.shape)}"
        )
    _check(baseline=(baseline, Baseline), scale=(scale, Scale), std=(std, Std))
    valid_N = ~torch.isnan(rewards_N)
    group_of_N, groups = _dense_ids(group_ids_N)
    # float64: in float32 the mean of eight 0.7 differs from 0.7 in the last bit, which a deviation of
    # nearly 0 blows up to advantages of tens.
    rewards_N64 = torch.where(valid_N, rewards_N, 0.0).double()
    valid_N64 = valid_N.double()

    def group_sum(values_N: Tensor) -> Tensor:
        return torch.zeros(groups, dtype=torch.float64, device=values_N.device).index_add_(0, group_of_N, values_N)

    count_N = group_sum(valid_N64)[group_of_N]
    sum_N = group_sum(rewards_N64)[group_of_N]
    mean_N = sum_N / count_N.clamp(min=1)
    batch_count = valid_N64.sum()
    batch_mean = rewards_N64.sum() / batch_count.clamp(min=1)
    centre_N = {
        "mean": mean_N,
        "leave_one_out": (sum_N - rewards_N64) / (count_N - 1).clamp(min=1),
        "batch_mean": batch_mean,
        "none": torch.zeros_like(mean_N),
    }[baseline]

    freedom = 1.0 if std == "sample" else 0.0
    if scale == "group_std":
        squares_N = group_sum((rewards_N64 - mean_N).square() * valid_N64)[group_of_N]
        divisor_N = (squares_N / (count_N - freedom).clamp(min=1)).sqrt() + eps
    elif scale == "batch_std":
        squares = ((rewards_N64 - batch_mean).square() * valid_N64).sum()
        divisor_N = (squares / (batch_count - freedom).clamp(min=1)).sqrt() + eps
    else:
        divisor_N = torch.ones_like(mean_N)

    signal_N = valid_N & has_signal(rewards_N, group_ids_N)
    return torch.where(signal_N, (rewards_N64 - centre_N) / divisor_N, 0.0).float()


def completion_advantages(
    rewards_N: Tensor,
    group_ids_N: Tensor,
    *,
    baseline: Centre = "mean",
    baseline_constant: float = 0.0,
    scale: Scale = "group_std",
    std: Std = "population",
    eps: float = 1e-6,
) -> Tensor:
    """Advantage of each completion under every baseline that is made of rewards.

    `group_advantages`, and what it leaves out: a constant baseline (REINFORCE, Williams 1992), against which equal
    rewards have a signal, and baselines of the batch, whose group is the batch.

    Args:
        rewards_N: [N] rewards; NaN = invalid, advantage 0.
        group_ids_N: [N] integers.
        baseline: as there, or "constant".
        baseline_constant: which.
        scale, std, eps: as there; a constant baseline has scale "none".

    Returns:
        [N] float32.

    Raises:
        ValueError: shapes differ, an option is unknown, or the baseline is a critic's.
    """
    if baseline == "critic":
        raise ValueError("baseline: got 'critic', expected one made of rewards")
    if baseline == "constant" or (baseline == "none" and scale == "none"):
        return torch.where(rewards_N.isnan(), 0.0, rewards_N - baseline_constant).float()
    if baseline in ("batch_mean", "none") and scale != "group_std":
        group_ids_N = torch.zeros_like(group_ids_N)
    return group_advantages(rewards_N, group_ids_N, baseline=baseline, scale=scale, std=std, eps=eps)


def has_signal(rewards_N: Tensor, group_ids_N: Tensor) -> Tensor:
    """[N] bool: whether the row's group holds at least two different valid rewards (max != min, exactly)."""
    group_of_N, groups = _dense_ids(group_ids_N)
    rewards_N = rewards_N.double()  # integers have no infinity
    highest = rewards_N.new_full((groups,), -torch.inf)
    highest.scatter_reduce_(0, group_of_N, rewards_N.nan_to_num(nan=-torch.inf), "amax")
    lowest = rewards_N.new_full((groups,), torch.inf)
    lowest.scatter_reduce_(0, group_of_N, rewards_N.nan_to_num(nan=torch.inf), "amin")
    return (highest > lowest)[group_of_N]


def _dense_ids(group_ids_N: Tensor) -> tuple[Tensor, int]:
    unique, group_of_N = torch.unique(group_ids_N, return_inverse=True)
    return group_of_N, len(unique)


def _check(**options: tuple[str, object]) -> None:
    for name, (got, allowed) in options.items():
        choices = get_args(allowed)
        if got not in choices:
            raise ValueError(f"{name}: got {got!r}, expected one of {', '.join(choices)}")
