"""What a batch earned, and who earned it: the values between rewards and advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from grouprl.algorithms.option import Part, option


@dataclass(frozen=True)
class Earned:
    """What N completions in groups were rewarded for."""

    rewards_N: Tensor  # float64, totals; NaN = invalid
    groups_N: Tensor  # integers; rows with the same one are a group
    mask_NT: Tensor  # bool, tokens that exist
    trained_NT: Tensor  # bool, those of them that are learned from
    components: Mapping[str, Tensor]  # [N] float64 by reward name, unweighted; NaN = does not apply
    weights: Mapping[str, float]  # of the components in the total
    steps: Sequence[Sequence[tuple[float, int]]]  # of each completion: (reward, last token) of its reasoning steps
    kl_NT: Tensor  # float64, what a KL in the reward takes from each token; 0 without one
    values_NT: Tensor | None = None  # of a critic, before each token


@dataclass(frozen=True)
class Credit:
    """Who earned what, token by token; 0 for a completion whose reward is invalid and outside the completions."""

    advantages_NT: Tensor  # float32
    returns_NT: Tensor | None = None  # what a critic learns to predict
    counted_NT: Tensor | None = None  # bool, tokens that a critic learns from


@dataclass(frozen=True)
class Advantage(Part):
    """How much better a completion, a reasoning step or a token is than expected: a part of every algorithm."""

    credit: Literal["completion", "step", "token"] = option("completion", "what is given an advantage of its own")

    def assign(self, earned: Earned) -> Credit:
        """The advantage of every token of a batch."""
        raise NotImplementedError

    @property
    def compares_totals(self) -> bool:
        """Whether a group of equal totals has no signal."""
        return False

    @property
    def of_batch(self) -> bool:
        """Whether a mean or deviation of the whole batch is part of it."""
        return False

    @property
    def formula(self) -> str:
        """The advantage as it is computed, for a reader."""
        raise NotImplementedError

    @property
    def refuses_kl(self) -> str:
        """Why rewards less a KL cannot be its input; '' where they can."""
        return ""
