"""Filters: which groups enter the loss, and a penalty for completions near the token limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.advantages import has_signal
from grouprl.algorithms.option import Part, option
from grouprl.types import UserError


def kept_groups(
    rewards: Sequence[Sequence[float]],
    *,
    drop_equal: bool = False,
    drop_below: float | None = None,
    drop_above: float | None = None,
) -> list[bool]:
    """Decides for each of P groups whether it enters the loss, as a whole.

    Args:
        rewards: [P] lists of G rewards; NaN = invalid, excluded from the mean.
        drop_equal: drop groups whose valid rewards are all equal (DAPO's dynamic sampling, arXiv:2503.14476,
            equation 11).
        drop_below, drop_above: drop groups whose mean reward is below or above; None = no bound. A group without
            valid rewards has no mean and is dropped when there is a bound.
    """
    low = -torch.inf if drop_below is None else drop_below
    high = torch.inf if drop_above is None else drop_above
    bounded = drop_below is not None or drop_above is not None
    is_kept_P = []
    for group in rewards:
        rewards_G = torch.tensor(group, dtype=torch.float64)
        within = not bounded or bool(low <= rewards_G.nanmean() <= high)
        varied = not drop_equal or bool(has_signal(rewards_G, torch.zeros(len(group))).all())
        is_kept_P.append(within and varied)
    return is_kept_P


def overlong_penalty(lengths_N: Tensor, *, max_tokens: int, buffer: float) -> Tensor:
    """Computes the soft overlong punishment (DAPO, arXiv:2503.14476, equation 13), which is added to the reward.

    Args:
        lengths_N: [N] tokens of each completion, at most max_tokens.
        max_tokens: the limit of a completion's length.
        buffer: share of max_tokens, in [0, 1], over which the penalty goes from 0 to -1.

    Returns:
        [N] float64 in [-1, 0]: 0 up to (1 - buffer) * max_tokens, then linear, -1 at max_tokens.
    """
    width = buffer * max_tokens
    if width == 0:
        return lengths_N.double() * 0.0
    return -((lengths_N.double() - (max_tokens - width)) / width).clamp(0.0, 1.0)


@dataclass(frozen=True)
class Filter(Part):
    """Selects the groups and completions that enter the loss; an algorithm with filter=None uses all."""

    absent: ClassVar[Mapping[str, Any]] = {
        "drop_equal": False,
        "drop_below": None,
        "drop_above": None,
        "overlong_buffer": 0.0,
        "mask_overlong": False,
    }

    drop_equal: bool = option(False, "drop groups without signal from the batch and its denominators")
    drop_below: float | None = option(None, "drop groups with a lower mean reward; null = no bound")
    drop_above: float | None = option(None, "drop groups with a higher mean reward; null = no bound")
    refills: int = option(0, "rounds of new problems that replace the dropped groups of a step", low=0, high=100)
    overlong_buffer: float = option(
        0.0, "last share of max_tokens, over which the reward falls by up to 1; 0 = off", low=0.0, high=1.0
    )
    mask_overlong: bool = option(
        False, "keep completions truncated at max_tokens out of the loss; they are still scored"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.drop_below, self.drop_above
        if self.refills and not self.drop_equal and low is None and high is None:
            raise UserError(
                f"algorithm.refills: expected another value with algorithm.drop_equal=False, got {self.refills}: "
                "nothing is dropped: set drop_equal=true"
            )
        if low is not None and high is not None and low > high:
            raise UserError(
                f"algorithm.drop_below: expected another value with algorithm.drop_above={high}, got {low}: "
                "every group would be dropped: lower drop_below"
            )

    def kept(self, rewards: Sequence[Sequence[float]]) -> list[bool]:
        """Whether each of P groups enters the loss, given the rewards [P][G]; see `kept_groups`."""
        return kept_groups(rewards, drop_equal=self.drop_equal, drop_below=self.drop_below, drop_above=self.drop_above)
