"""Which groups of a batch are learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.option import Part, option
from grouprl.algorithms.statistics import has_signal
from grouprl.types import UserError


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


@dataclass(frozen=True)
class Filter(Part):
    """Which groups and completions are learned from; None in an algorithm = all."""

    absent: ClassVar[Mapping[str, Any]] = {
        "drop_equal": False,
        "drop_below": None,
        "drop_above": None,
        "overlong_buffer": 0.0,
        "mask_overlong": False,
    }

    drop_equal: bool = option(False, "groups without signal leave the batch and its denominators")
    drop_below: float | None = option(None, "so do groups whose mean reward is lower; null = no bound")
    drop_above: float | None = option(None, "or higher; null = no bound")
    refills: int = option(0, "rounds of further problems sampled in the place of dropped groups", low=0, high=100)
    overlong_buffer: float = option(
        0.0, "last share of max_tokens, over which the reward falls by up to 1", low=0.0, high=1.0
    )
    mask_overlong: bool = option(False, "completions cut at max_tokens are scored, but not learned from")

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.drop_below, self.drop_above
        if self.refills and not self.drops:
            raise UserError(
                f"algorithm.refills: expected another value with algorithm.drop_equal=False, got {self.refills}: "
                "nothing is dropped: set drop_equal=true"
            )
        if low is not None and high is not None and low > high:
            raise UserError(
                f"algorithm.drop_below: expected another value with algorithm.drop_above={high}, got {low}: "
                "every group would be dropped: lower drop_below"
            )

    @property
    def drops(self) -> bool:
        """Whether a group can be dropped."""
        return self.drop_equal or self.drop_below is not None or self.drop_above is not None

    def kept(self, rewards: Sequence[Sequence[float]]) -> list[bool]:
        """Whether each of P groups is learned from, by its rewards [P][G]; see `kept_groups`."""
        return kept_groups(rewards, drop_equal=self.drop_equal, drop_below=self.drop_below, drop_above=self.drop_above)
