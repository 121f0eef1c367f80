"""SAPO (arXiv:2511.20347, equations 5 and 6): a soft gate instead of a clip."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from grouprl.algorithms.losses import Objective
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm, Updates
from grouprl.algorithms.surrogates import Terms, sapo_gain


@dataclass(frozen=True)
class Sapo(Objective):
    """A soft gate instead of a clip (SAPO, arXiv:2511.20347, equations 5 and 6)."""

    surrogate: Literal["sapo"] = option("sapo", "a gradient that fades as the ratio of a token leaves 1")
    tau_pos: float = option(1.0, "with sapo: how fast the gradient fades for positive advantages", low=1e-6)
    tau_neg: float = option(1.05, "with sapo: how fast the gradient fades for negative advantages", low=1e-6)

    def gain(self, terms: Terms) -> Tensor:
        """[N, T] a sigmoid of the ratio, times the advantage."""
        return sapo_gain(terms, tau_pos=self.tau_pos, tau_neg=self.tau_neg)


ALGORITHM = Algorithm("sapo", objective=Sapo(), kl=None, updates=Updates(minibatches=4))
