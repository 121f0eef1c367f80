"""The length penalty of an algorithm, as one more component of the reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from grouprl.algorithms import overlong_penalty
from grouprl.scoring.functions import SOFT_OVERLONG
from grouprl.types import Group, RewardOutcome


def with_overlong_penalty(
    groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]], *, max_tokens: int, buffer: float
) -> list[tuple[RewardOutcome, ...]]:
    """The outcomes [P][G] with the penalty of `overlong_penalty` added and shown as the component `soft_overlong`."""
    if buffer == 0:
        return [tuple(row) for row in outcomes]
    return [
        tuple(
            replace(outcome, total=outcome.total + penalty, components={**outcome.components, SOFT_OVERLONG: penalty})
            for outcome, penalty in zip(row, penalties, strict=True)
        )
        for row, penalties in (
            (row, _penalties(group, max_tokens, buffer)) for group, row in zip(groups, outcomes, strict=True)
        )
    ]


def _penalties(group: Group, max_tokens: int, buffer: float) -> list[float]:
    lengths_N = torch.tensor([len(completion) for completion in group.completions])
    penalties: list[float] = overlong_penalty(lengths_N, max_tokens=max_tokens, buffer=buffer).tolist()
    return penalties
