"""OPO (arXiv:2505.23585): a baseline weighted by length, for the least variance."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grouprl.algorithms.advantages import CompletionAdvantage, Statistics, group_statistics
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm


@dataclass(frozen=True)
class LengthAdvantage(CompletionAdvantage):
    """Subtracts sum(T r) / sum(T) of the group: best where the squared gradient of a completion grows as its length."""

    compares_totals: ClassVar[bool] = True

    baseline: Literal["length_mean"] = option(
        "length_mean", "subtracted from a reward: mean of the group, weighted by length"
    )
    scale: Literal["none"] = option("none", "no divisor")

    def compared(self, rewards_N: Tensor, groups_N: Tensor, lengths_N: Tensor | None = None) -> Statistics:
        """`statistics` with the completions' lengths."""
        return self.statistics(rewards_N, groups_N, lengths_N)

    def statistics(self, rewards_N: Tensor, groups_N: Tensor, lengths_N: Tensor | None = None) -> Statistics:
        """The group's statistics with the weighted mean as baseline; None = completions of one length."""
        lengths_N = (torch.ones_like(rewards_N) if lengths_N is None else lengths_N) * ~rewards_N.isnan()
        unique, group_of_N = torch.unique(groups_N, return_inverse=True)
        sums_2P = torch.zeros(2, len(unique), dtype=torch.float64)
        sums_2P.index_add_(1, group_of_N, torch.stack([rewards_N.nan_to_num(nan=0.0) * lengths_N, lengths_N]).double())
        baseline_P = sums_2P[0] / sums_2P[1].clamp(min=1)
        return replace(group_statistics(rewards_N, groups_N, scale="none"), baseline_N=baseline_P[group_of_N])


ALGORITHM = Algorithm("opo", advantage=LengthAdvantage(), objective=Plain(aggregate="constant"), kl=None)
