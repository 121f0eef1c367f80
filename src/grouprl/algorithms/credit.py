"""What a batch earned, and who earned it: the values between rewards and advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from grouprl.algorithms.option import Part, option
from grouprl.algorithms.statistics import Std


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


_BASELINES = {
    "mean": "mean(group)",
    "leave_one_out": "mean(others of the group)",
    "batch_mean": "mean(batch)",
    "critic": "value",
}
_SCALES = {"group_std": "std(group)", "batch_std": "std(batch)", "group_mean": "mean(group)"}


@dataclass(frozen=True)
class Advantage(Part):
    """How much better a completion, a reasoning step or a token is than expected: a part of every algorithm."""

    reward: ClassVar[str] = "r"  # as a formula has it: of the completion, or what a token can still earn
    compares_totals: ClassVar[bool] = False  # equal rewards of a group are no signal

    credit: Literal["completion", "step", "token"] = option("completion", "what is given an advantage of its own")
    baseline: str = option("mean", "what is subtracted")
    scale: str = option("group_std", "what divides")

    def assign(self, earned: Earned) -> Credit:
        """The advantage of every token of a batch."""
        raise NotImplementedError

    @property
    def of_batch(self) -> bool:
        """Whether a mean or deviation of the whole batch is part of it."""
        return self.baseline == "batch_mean" or self.scale == "batch_std"

    @property
    def formula(self) -> str:
        """The advantage as it is computed, for a reader."""
        less = _BASELINES.get(self.baseline, self.baseline.replace("none", ""))
        over = _SCALES.get(self.scale, "")
        centered = f"{self.reward} - {less}" if less else self.reward
        return f"({centered}) / {over}" if less and over else f"{centered} / {over}" if over else centered


@dataclass(frozen=True)
class ScaledAdvantage(Advantage):
    """One that a standard deviation may divide."""

    std: Std = option("population", "the deviation divides the squares by n, or by n - 1")
    eps: float = option(1e-6, "added to the deviation", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == "none":
            self.refuse_idle("std", "eps", beside="scale")
