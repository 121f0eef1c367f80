"""How evenly a batch's tokens are spread over the experts of a mixture, pack by pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms import balance_loss
from grouprl.learner.packs import Pack, pack_hidden
from grouprl.models.experts import Routing, noted_routing


@dataclass(frozen=True)
class ExpertShares:
    """The choices of all tokens of an update that have a weight in the loss.

    The balancing loss multiplies them with probabilities: with those of a pack alone, it would depend on the packs.
    """

    shares_LE: Tensor  # [L, E] share of the tokens that choose each expert
    tokens: int

    def loss(self, noted: Sequence[Routing], pack: Pack, weights_nT: Tensor) -> Tensor:
        """The part of a pack in the update's balancing loss."""
        logits_LCE = torch.stack([one.logits_SE for one in _counted(noted, pack, weights_nT)])
        return balance_loss(logits_LCE, self.shares_LE, tokens=self.tokens)


def choices(model: PreTrainedModel, pack: Pack, weights_nT: Tensor) -> Tensor:
    """[L, E] numbers of the pack's tokens with a weight that choose each expert."""
    with noted_routing() as noted:
        pack_hidden(model, pack)
    counted = _counted(noted, pack, weights_nT)
    return torch.stack([one.experts_SK.flatten().bincount(minlength=one.logits_SE.shape[1]) for one in counted])


def _counted(noted: Sequence[Routing], pack: Pack, weights_nT: Tensor) -> list[Routing]:
    """Of each layer, the routing of the tokens that predict completion tokens with a weight in the loss."""
    index_C = pack.predictors_C[weights_nT[pack.row_C, pack.column_C] > 0]
    return [one.take(index_C) for one in noted]
