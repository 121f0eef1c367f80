"""MaxRL (arXiv:2602.02710): GRPO divided by the mean reward instead of the deviation."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grouprl.algorithms.advantages import CompletionAdvantage, Statistics, group_statistics
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm
from grouprl.types import UserError


@dataclass(frozen=True)
class LikelihoodAdvantage(CompletionAdvantage):
    """Divides by the group's mean: with rewards of 0 and 1 this estimates the gradient of the log pass rate."""

    compares_totals: ClassVar[bool] = True

    baseline: Literal["mean"] = option("mean", "subtracted: mean of the group")
    scale: Literal["group_mean"] = option("group_mean", "divides: mean of the group")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """Returns the group's mean as baseline and divisor.

        Raises:
            UserError: a reward is below 0, so the mean is not a likelihood.
        """
        if bool((rewards_N < 0).any()):
            raise UserError(f"algorithm maxrl: expected rewards of 0 or more, got {rewards_N.nan_to_num().min():g}")
        statistics = group_statistics(rewards_N, groups_N, scale="none")
        divisor_N = torch.where(statistics.signal_N, statistics.mean, torch.ones_like(statistics.mean))
        return replace(statistics, divisor_N=divisor_N)


ALGORITHM = Algorithm("maxrl", advantage=LikelihoodAdvantage(), kl=None)
