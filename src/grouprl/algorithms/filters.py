"""Which groups of a batch are learned from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grouprl.algorithms.advantages import has_signal


def kept_rows(
    rewards_N: Tensor,
    group_ids_N: Tensor,
    *,
    drop_equal: bool = False,
    drop_below: float | None = None,
    drop_above: float | None = None,
) -> Tensor:
    """[N] bool: whether the row's group stays; groups are kept or dropped whole.

    Args:
        rewards_N: [N] rewards; NaN = invalid, left out of the mean.
        group_ids_N: [N] integers; rows with the same id are one group.
        drop_equal: drop groups whose valid rewards are all equal (DAPO's dynamic sampling, arXiv:2503.14476,
            equation 11).
        drop_below, drop_above: drop groups whose mean reward is below or above; None = no bound. A group without
            valid rewards has no mean and is dropped when there is a bound.
    """
    keep_N = has_signal(rewards_N, group_ids_N) if drop_equal else torch.ones_like(rewards_N, dtype=torch.bool)
    if drop_below is None and drop_above is None:
        return keep_N
    low = -torch.inf if drop_below is None else drop_below
    high = torch.inf if drop_above is None else drop_above
    for group in set(group_ids_N.tolist()):
        member_N = group_ids_N == group
        keep_N = keep_N & (~member_N | bool(low <= rewards_N[member_N].nanmean() <= high))
    return keep_N


def kept_groups(
    rewards: Sequence[Sequence[float]],
    *,
    drop_equal: bool = False,
    drop_below: float | None = None,
    drop_above: float | None = None,
) -> list[bool]:
    """`kept_rows` by group, of the rewards [P][G] of P groups."""
    rows_N = kept_rows(
        torch.tensor([reward for group in rewards for reward in group], dtype=torch.float64),
        torch.tensor([index for index, group in enumerate(rewards) for _ in group]),
        drop_equal=drop_equal,
        drop_below=drop_below,
        drop_above=drop_above,
    )
    return [bool(kept_G.all()) for kept_G in torch.split(rows_N, [len(group) for group in rewards])]
