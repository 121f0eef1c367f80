"""Advantages: statistics of groups of rewards, and (reward - baseline) / deviation of whole completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from grouprl.algorithms.option import Part, option
from grouprl.types import UserError

Baseline = Literal["mean", "leave_one_out", "batch_mean", "none"]
Scale = Literal["group_std", "batch_std", "advantage_std", "none"]
Std = Literal["population", "sample"]
Mix = Literal["sum_then_normalise", "normalise_then_sum"]

_ROUNDING = 2.0**-50  # four units in the last place of a float64


@dataclass(frozen=True)
class Statistics:
    """[N] float64 tensors: advantage = (reward - baseline) / divisor for groups with signal, else 0.

    `mean` and `deviation` describe the group. They enter no advantage, so that nobody can replace them.
    """

    baseline_N: Tensor
    divisor_N: Tensor  # deviation + eps, or 1
    signal_N: Tensor  # bool: the reward is valid, and its group has two different rewards
    moments_N: tuple[Tensor, Tensor]  # mean and deviation

    @property
    def mean(self) -> Tensor:
        """[N] mean of the valid rewards of the row's group."""
        return self.moments_N[0]

    @property
    def deviation(self) -> Tensor:
        """[N] standard deviation of the rewards of the row's group, or of the batch, or of its advantages."""
        return self.moments_N[1]

    def normalized(self, rewards_N: Tensor) -> Tensor:
        """Returns [N] float64 advantages, exactly 0 without signal.

        Raises:
            UserError: an own advantage gave another shape.
        """
        for name in ("baseline_N", "divisor_N", "signal_N"):
            check_tensor(f"statistics: {name}", getattr(self, name), rewards_N.shape)
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
        scale: divides: the group's standard deviation, the batch's, that of the batch's advantages, nothing.
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

    signal_N = valid_N & has_signal(rewards_N, group_ids_N)
    freedom = 1.0 if std == "sample" else 0.0
    of_batch = scale in ("batch_std", "advantage_std")
    if of_batch:
        values_N = torch.where(signal_N, rewards_N64 - baseline_N, 0.0) if scale == "advantage_std" else rewards_N64
        middle = (values_N * valid_N64).sum() / batch_count.clamp(min=1)
        squares = ((values_N - middle).square() * valid_N64).sum()
        deviation_N = (squares / (batch_count - freedom).clamp(min=1)).sqrt().expand_as(mean_N)
    else:
        squares_N = group_sum((rewards_N64 - mean_N).square() * valid_N64)[group_of_N]
        deviation_N = (squares_N / (count_N - freedom).clamp(min=1)).sqrt()
    divisor_N = torch.ones_like(mean_N)
    if scale != "none":
        # 0.1 + 0.2 and 0.3 differ: a deviation of a few last bits says nothing, and without eps it would say all.
        size_N = (batch_mean.expand_as(mean_N) if of_batch else mean_N).abs()
        divisor_N = torch.where(deviation_N + eps <= size_N * _ROUNDING, size_N, deviation_N + eps)
    return Statistics(baseline_N, divisor_N, signal_N, (mean_N, deviation_N))


def has_signal(rewards_N: Tensor, group_ids_N: Tensor) -> Tensor:
    """[N] bool: whether the row's group has at least two different valid rewards (max != min, exactly)."""
    unique, group_of_N = torch.unique(group_ids_N, return_inverse=True)
    rewards_N = rewards_N.double()  # integers have no infinity
    highest = rewards_N.new_full((len(unique),), -torch.inf)
    highest.scatter_reduce_(0, group_of_N, rewards_N.nan_to_num(nan=-torch.inf), "amax")
    lowest = rewards_N.new_full((len(unique),), torch.inf)
    lowest.scatter_reduce_(0, group_of_N, rewards_N.nan_to_num(nan=torch.inf), "amin")
    return (highest > lowest)[group_of_N]


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
        rewards_N: [N] rewards; NaN = invalid: no statistic includes it, and its advantage is exactly 0.
        group_ids_N: [N] integers; rows with the same id are one group, in any order, of any size.
        baseline, scale, std, eps: as in `group_statistics`.

    Returns:
        [N] float32. A group whose valid rewards are all equal, or with fewer than 2 valid, carries no signal
        and gets exactly 0, whatever the baseline.

    Raises:
        ValueError: shapes differ, or an option is unknown.
    """
    statistics = group_statistics(rewards_N, group_ids_N, baseline=baseline, scale=scale, std=std, eps=eps)
    return statistics.advantages(rewards_N)


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


def check_tensor(name: str, value: object, shape: Sequence[int], *, finite: bool = False) -> Tensor:
    """Returns a tensor that the code of a user gave.

    Raises:
        UserError: it is no tensor of real numbers of this shape; or, with `finite`, has NaN or infinity.
    """
    got: object = type(value).__name__
    if isinstance(value, Tensor):
        got = f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
        wrong = int((~value.isfinite()).sum()) if finite else 0
        if value.shape == tuple(shape) and not value.is_complex() and not wrong:
            return value
        got = f"{got}, {wrong} of its numbers NaN or infinite" if wrong else got
    kind = "finite numbers" if finite else "numbers"
    raise UserError(f"{name}: expected a tensor {tuple(shape)} of {kind}, got {got}: correct the algorithm")


_BASELINES = {
    "mean": "mean(group)",
    "leave_one_out": "mean(others of the group)",
    "batch_mean": "mean(batch)",
    "length_mean": "sum(T r) / sum(T)",
    "best_other": "min(r, max(others of the group))",
    "critic": "value",
}
_SCALES = {
    "group_std": "std(group)",
    "batch_std": "std(batch)",
    "advantage_std": "std(batch's advantages)",
    "group_mean": "mean(group)",
}


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
        return self.baseline == "batch_mean" or self.scale in ("batch_std", "advantage_std")

    @property
    def formula(self) -> str:
        """The advantage as an equation in plain text."""
        less = _BASELINES.get(self.baseline, self.baseline.replace("none", ""))
        over = _SCALES.get(self.scale, "")
        centered = f"{self.reward} - {less}" if less else self.reward
        return f"({centered}) / {over}" if less and over else f"{centered} / {over}" if over else centered


@dataclass(frozen=True)
class CompletionAdvantage(Advantage):
    """All tokens of a completion share one advantage, which compares its reward with other rewards."""

    credit: Literal["completion"] = option("completion", "unit with an advantage of its own: the whole completion")
    reward_mix: Mix = option(
        "sum_then_normalise", "with several rewards: the advantage of their sum, or the sum of their advantages"
    )

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """Returns baseline, divisor and signal of each completion of a batch; NaN = invalid reward."""
        options: Any = {"baseline": self.baseline, "scale": self.scale}  # each kind narrows their types
        return group_statistics(rewards_N, groups_N, **options, std=self.std, eps=self.eps)

    def compared(self, rewards_N: Tensor, groups_N: Tensor, lengths_N: Tensor | None = None) -> Statistics:
        """`statistics`, which an own advantage may compute. Raises UserError for another value than `Statistics`.

        `lengths_N` are the completions' tokens, for a baseline that weighs rewards by them; None = all of one length.
        """
        statistics: object = self.statistics(rewards_N, groups_N)
        if not isinstance(statistics, Statistics):
            kind = type(statistics).__name__
            raise UserError(f"statistics: expected Statistics, got {kind}: return a changed group_statistics(...)")
        return statistics

    def compare(
        self,
        rewards_N: Tensor,
        components: Mapping[str, Tensor],
        weights: Mapping[str, float],
        groups_N: Tensor,
        lengths_N: Tensor | None = None,
    ) -> Tensor:
        """[N] float32 advantages of the rewards' sum, or the weighted sum of each reward's own: see `BatchRewards`."""
        if self.reward_mix == "sum_then_normalise":
            return self.compared(rewards_N, groups_N, lengths_N).advantages(rewards_N)
        advantages_N = torch.zeros(len(groups_N))
        for name, weight in weights.items():
            alone = self.compared(components[name], groups_N, lengths_N).advantages(components[name])
            advantages_N = advantages_N + weight * alone
        return advantages_N

    def assign(self, batch: BatchRewards) -> Credit:
        """Gives every token of a completion the completion's advantage."""
        rewards_N = batch.rewards_N - batch.kl_NT.sum(1)
        lengths_N = batch.mask_NT.sum(1)
        advantages_N = self.compare(rewards_N, batch.components, batch.weights, batch.groups_N, lengths_N)
        advantages_N = check_tensor("compare: advantages_N", advantages_N, rewards_N.shape)
        return Credit(advantages_N[:, None] * batch.mask_NT)


@dataclass(frozen=True)
class GroupAdvantage(CompletionAdvantage):
    """Compares a completion with its own group; in GRPO this replaces the critic."""

    compares_totals: ClassVar[bool] = True

    baseline: Literal["mean", "leave_one_out"] = option(
        "mean", "subtracted from a reward: mean of the group, or of its other completions"
    )
    scale: Scale = option(
        "group_std", "divisor: deviation of the group, of the batch, of the batch's advantages, or none"
    )
