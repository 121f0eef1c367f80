"""VESPO (arXiv:2602.10693): a smooth weight by the completion's ratio instead of a clip."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from grouprl.algorithms.losses import Objective
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm, Updates
from grouprl.algorithms.surrogates import Terms, vespo_gain


@dataclass(frozen=True)
class Vespo(Objective):
    """Weighs a completion by w^k e^(lambda (1 - w)) of its ratio w, the product over its tokens (arXiv:2602.10693)."""

    surrogate: Literal["vespo"] = option("vespo", "a weight that fades as the ratio of a completion leaves 1")
    ratio: Literal["token"] = option("token", "multiplied over the completion, without a mean")
    k_pos: float = option(2.0, "with vespo: power of the ratio for positive advantages", low=0.0)
    lambda_pos: float = option(3.0, "with vespo: decay of the ratio for positive advantages", low=1e-4)
    k_neg: float = option(3.0, "with vespo: power of the ratio for negative advantages", low=0.0)
    lambda_neg: float = option(2.0, "with vespo: decay of the ratio for negative advantages", low=1e-4)

    def gain(self, terms: Terms) -> Tensor:
        """[N, T] weight of the completion, without gradient, times advantage and log-prob."""
        return vespo_gain(
            terms, k_pos=self.k_pos, lambda_pos=self.lambda_pos, k_neg=self.k_neg, lambda_neg=self.lambda_neg
        )


# k and lambda as in TRL. With one update every weight is 1; GSPO's number of minibatches.
ALGORITHM = Algorithm("vespo", objective=Vespo(aggregate="token_mean"), kl=None, updates=Updates(minibatches=4))
