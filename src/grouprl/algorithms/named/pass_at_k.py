"""The gradient of pass@k, k the group's size (arXiv:2503.19595): the best completion's lead over the second."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grouprl.algorithms.advantages import CompletionAdvantage, Statistics, group_statistics
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm


@dataclass(frozen=True)
class BestAdvantage(CompletionAdvantage):
    """Rewards a group for its best completion: what the group's maximum would lose without a completion."""

    compares_totals: ClassVar[bool] = True

    baseline: Literal["best_other"] = option(
        "best_other", "subtracted from a reward: the best of the group's others, or less, so that 0 is left"
    )
    scale: Literal["group_std", "none"] = option("none", "divisor: deviation of the group, or none")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """The best other reward as baseline, and at most the completion's own: all but the best get 0."""
        statistics = group_statistics(rewards_N, groups_N, scale=self.scale, std=self.std, eps=self.eps)
        baseline_N = statistics.mean.clone()
        for group in torch.unique(groups_N[statistics.signal_N]):
            rows_N = statistics.signal_N & (groups_N == group)
            rewards_n = rewards_N[rows_N].double()
            baseline_N[rows_N] = rewards_n.clamp(max=float(rewards_n.topk(2).values[1]))
        return replace(statistics, baseline_N=baseline_N)


ALGORITHM = Algorithm("pass_at_k", advantage=BestAdvantage(), objective=Plain(aggregate="constant"), kl=None)
