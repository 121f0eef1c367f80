"""CISPO (MiniMax-M1, arXiv:2506.13585, equations 4 and 5): the token weight has an upper bound alone."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from grouprl.algorithms.losses import Objective
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.surrogates import Terms, cispo_gain


@dataclass(frozen=True)
class Cispo(Objective):
    """Bounds the detached ratio and keeps the gradient (MiniMax-M1, arXiv:2506.13585, equation 4)."""

    surrogate: Literal["cispo"] = option("cispo", "a bounded weight for each token; no gradient is cut")
    clip_low: float = option(0.2, "smallest weight: 1 - clip_low", low=0.0, high=1.0)
    clip_high: float = option(0.2, "largest weight: 1 + clip_high", low=0.0)

    def gain(self, terms: Terms) -> Tensor:
        """[N, T] the clipped ratio, without gradient, times advantage and log-prob."""
        return cispo_gain(terms, low=self.clip_low, high=self.clip_high)


# The bound is 5, as in ScaleRL (arXiv:2510.13786).
ALGORITHM = Algorithm("cispo", objective=Cispo(clip_low=1.0, clip_high=4.0, aggregate="token_mean"), kl=None)
