"""GMPO (arXiv:2507.20673, equation 4): the geometric mean of ratios that are clipped at e^-0.4 and e^0.4."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from grouprl.algorithms.losses import Objective
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm, Updates
from grouprl.algorithms.surrogates import Terms, gmpo_gain


@dataclass(frozen=True)
class Gmpo(Objective):
    """The geometric mean of the clipped ratios of a completion (GMPO, arXiv:2507.20673, equation 4)."""

    surrogate: Literal["gmpo"] = option("gmpo", "geometric mean of the clipped ratios of a completion")
    ratio: Literal["token"] = option("token", "clipped for each token, before the mean")
    clip_low: float = option(0.33, "lower clip range: ratio >= 1 - clip_low", low=0.0, below=1.0)
    clip_high: float = option(0.49, "upper clip range: ratio <= 1 + clip_high", low=0.0)

    def gain(self, terms: Terms) -> Tensor:
        """[N, T] geometric mean of the completion's clipped ratios, times the advantage."""
        return gmpo_gain(terms, low=self.clip_low, high=self.clip_high)


# With one update all ratios are 1, as in GRPO; GSPO's number of minibatches.
ALGORITHM = Algorithm("gmpo", objective=Gmpo(), kl=None, updates=Updates(minibatches=4))
