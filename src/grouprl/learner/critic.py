"""The learner of a critic beside the policy's: PPO's value loss, on a trunk of its own or on the policy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from grouprl.algorithms import value_loss
from grouprl.algorithms.values import CriticPart, SharedCritic
from grouprl.learner.batch import Valuation
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.packs import Pack, cut, to_grid
from grouprl.models.critic import Critic


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
