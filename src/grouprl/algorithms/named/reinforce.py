"""REINFORCE (Williams 1992): the reward less a constant."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from grouprl.algorithms.advantages import CompletionAdvantage, Statistics, group_statistics
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm


@dataclass(frozen=True)
class ConstantAdvantage(CompletionAdvantage):
    """Subtracts a constant from the reward (REINFORCE, Williams 1992), so equal rewards have a signal too."""

    baseline: Literal["constant"] = option("constant", "subtracted from a reward: baseline_constant")
    scale: Literal["none"] = option("none", "no divisor")
    reward_mix: Literal["sum_then_normalise"] = option(
        "sum_then_normalise", "with several rewards: the advantage of their sum"
    )
    baseline_constant: float = option(0.0, "baseline of REINFORCE: this number")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        """Uses the constant as baseline; mean and deviation of the group are there for the page alone."""
        statistics = group_statistics(rewards_N, groups_N, baseline="none", scale="none")
        baseline_N = torch.full_like(statistics.mean, self.baseline_constant)
        return replace(statistics, baseline_N=baseline_N, signal_N=~rewards_N.isnan())


ALGORITHM = Algorithm("reinforce", advantage=ConstantAdvantage(), objective=Plain(aggregate="constant"), kl=None)
