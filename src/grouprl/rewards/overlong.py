"""The length penalty of an algorithm, added to the rewards of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from grouprl.algorithms import overlong_penalty
from grouprl.rewards.functions import SOFT_OVERLONG
from grouprl.types import Group, RewardOutcome


@dataclass(frozen=True)
class Overlong:
    """The length penalty of an algorithm: DAPO's soft overlong punishment, see `algorithms.overlong_penalty`."""

    buffer: float  # share of max_tokens over which the penalty goes from 0 to -1
    max_tokens: int

    def penalized(self, group: Group, outcomes: Sequence[RewardOutcome]) -> list[RewardOutcome]:
        """Adds the penalty to the outcomes [G] of a group, also as the component `soft_overlong`."""
        lengths_G = torch.tensor([len(completion) for completion in group.completions])
        penalties_G = overlong_penalty(lengths_G, max_tokens=self.max_tokens, buffer=self.buffer)
        return [
            replace(outcome, penalty=penalty, components={**outcome.components, SOFT_OVERLONG: penalty})
            for outcome, penalty in zip(outcomes, penalties_G.tolist(), strict=True)
        ]
