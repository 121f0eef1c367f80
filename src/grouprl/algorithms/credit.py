"""The rewards of a batch, and the advantages that are assigned to its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from grouprl.algorithms.option import Part, option
from grouprl.algorithms.statistics import Std


@dataclass(frozen=True)
class BatchRewards:
    """The rewards of a batch of N completions, and what an advantage needs to assign credit for them."""

    rewards_N: Tensor  # float64, totals; NaN = invalid
    groups_N: Tensor  # integers; rows with the same integer form a group
    mask_NT: Tensor  # bool, tokens that exist
    trained_NT: Tensor  # bool, tokens that the loss includes
    components: Mapping[str, Tensor]  # [N] float64 by reward name, unweighted; NaN = does not apply
    weights: Mapping[str, float]  # weight of each component in the total
    steps: Sequence[Sequence[tuple[float, int]]]  # [N] lists: (reward, last token) of each reasoning step
    kl_NT: Tensor  # float64, KL penalty subtracted from each token's reward; 0 without a KL in the reward
    values_NT: Tensor | None = None  # the critic's value before each token


@dataclass(frozen=True)
class Credit:
    """Advantages [N, T] of a batch; 0 outside the completions, and for a completion with an invalid reward."""

    advantages_NT: Tensor  # float32
    returns_NT: Tensor | None = None  # the critic's targets
    counted_NT: Tensor | None = None  # bool, tokens whose returns the critic learns


_BASELINES = {
    "mean": "mean(group)",
    "leave_one_out": "mean(others of the group)",
    "batch_mean": "mean(batch)",
    "critic": "value",
}
_SCALES = {"group_std": "std(group)", "batch_std": "std(batch)", "group_mean": "mean(group)"}


@dataclass(frozen=True)
class Advantage(Part):
    """Compares a completion, a reasoning step or a token with a baseline; every algorithm has this part."""

    reward: ClassVar[str] = "r"  # symbol in the formula: the completion's reward, or the return from a token on
    compares_totals: ClassVar[bool] = False  # whether a group with equal rewards has no signal

    credit: Literal["completion", "step", "token"] = option("completion", "unit with an advantage of its own")
    baseline: str = option("mean", "subtracted from a reward")
    scale: str = option("group_std", "divisor of a reward")
    std: Std = option("population", "deviation with n (population) or n - 1 (sample)")
    eps: float = option(1e-6, "number added to the deviation", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == "none":
            self.refuse_idle("std", "eps", beside="scale")

    def assign(self, batch: BatchRewards) -> Credit:
        """Computes the advantage of every token of a batch."""
        raise NotImplementedError

    @property
    def of_batch(self) -> bool:
        """Whether the advantage uses the mean or the deviation of the whole batch."""
        return self.baseline == "batch_mean" or self.scale == "batch_std"

    @property
    def formula(self) -> str:
        """The advantage as an equation in plain text."""
        less = _BASELINES.get(self.baseline, self.baseline.replace("none", ""))
        over = _SCALES.get(self.scale, "")
        centered = f"{self.reward} - {less}" if less else self.reward
        return f"({centered}) / {over}" if less and over else f"{centered} / {over}" if over else centered
