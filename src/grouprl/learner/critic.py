"""The learner of a critic beside the policy's: PPO's value loss, on a trunk of its own or on the policy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grouprl.algorithms import token_weights, value_loss
from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.values import CriticPart, SharedCritic
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.packs import Pack, cut, to_grid
from grouprl.models.critic import Critic


@dataclass(frozen=True)
class Valuation:
    """What a critic learns from a batch: [N, T] tensors."""

    values_NT: Tensor  # before the first update
    returns_NT: Tensor
    counted_NT: Tensor  # bool, tokens of its loss

    @staticmethod
    def of(values_NT: Tensor | None, credit: Credit) -> Valuation | None:
        """None where there is no critic, or the credit has no returns for one."""
        if values_NT is None or credit.returns_NT is None or credit.counted_NT is None:
            return None
        return Valuation(values_NT, credit.returns_NT, credit.counted_NT)

    @property
    def explained_variance(self) -> float:
        """1 - Var(returns - values) / Var(returns) of the counted tokens: 1 for a perfect critic, 0 for a constant."""
        returns, values = (one.cpu()[self.counted_NT].double() for one in (self.returns_NT, self.values_NT))
        spread = float(returns.var(correction=0)) if len(returns) else 0.0
        return 1 - float((returns - values).var(correction=0)) / spread if spread > 0 else float("nan")

    def weights(self, rows: Sequence[int]) -> Tensor:
        """[N, T] weights of the value loss, which is a mean over the counted tokens of these rows."""
        counted_NT = torch.zeros_like(self.counted_NT)
        counted_NT[list(rows)] = self.counted_NT[list(rows)]
        return token_weights(counted_NT, aggregate="token_mean")


@dataclass(frozen=True)
class ValueLoss:
    """The value loss of one update."""

    critic: Critic
    part: CriticPart
    valuation: Valuation
    weights_NT: Tensor
    rows: list[int]  # those with a weight

    def __call__(self, pack: Pack, hidden_CH: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a pack from the hidden states [C, H] that predict its tokens, and its metrics."""
        valued = self.valuation
        cost, stats = value_loss(
            to_grid(pack, self.critic.values(hidden_CH)),
            *(cut(pack, whole_NT) for whole_NT in (valued.values_NT, valued.returns_NT, self.weights_NT)),
            clip=self.part.value_clip,
        )
        return cost, stats | {"value_loss": cost}

    @property
    def coef(self) -> float:
        """The weight of the loss in that of a policy with the same trunk."""
        return self.part.value_coef if isinstance(self.part, SharedCritic) else 1.0


@dataclass(frozen=True)
class CriticLearner:
    """A critic and its optimizer."""

    critic: Critic
    optimizer: Optimizer
    part: CriticPart  # the algorithm's options

    def loss(self, valuation: Valuation | None, rows: Sequence[int]) -> ValueLoss | None:
        """The loss of an update from these rows; None where the critic has nothing to learn from."""
        if valuation is None:
            return None
        weights_NT = valuation.weights(rows)
        return ValueLoss(self.critic, self.part, valuation, weights_NT, [row for row in rows if weights_NT[row].any()])
