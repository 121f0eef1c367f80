"""REINFORCE with the mean reward of the batch as the baseline."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from grouprl.algorithms.advantages import CompletionAdvantage, Statistics
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm


@dataclass(frozen=True)
class BatchAdvantage(CompletionAdvantage):
    """Compares a completion with the whole batch, which is treated as one group."""

    baseline: Literal["batch_mean", "none"] = option(
        "batch_mean", "subtracted from a reward: mean of the batch, or nothing"
    )
    scale: Literal["batch_std", "none"] = option("none", "divisor: deviation of the batch, or none")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """Those of the batch as one group. With neither its mean nor its deviation, equal rewards have a signal too."""
        statistics = super().statistics(rewards_N, torch.zeros_like(groups_N))
        return statistics if self.of_batch else replace(statistics, signal_N=~rewards_N.isnan())


ALGORITHM = Algorithm("reinforce_batch", advantage=BatchAdvantage(), objective=Plain(aggregate="constant"), kl=None)
