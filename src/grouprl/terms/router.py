"""The balance of a mixture: how evenly an update's tokens are spread over the experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms import balance_loss
from grouprl.forward.experts import Routing, noted_routing, watch_routers
from grouprl.learner.batch import UpdateInputs
from grouprl.learner.packs import Pack, Stats, cut, pack_hidden
from grouprl.learner.runner import PackRunner
from grouprl.learner.terms import PackLoss, PackPass, Term


@dataclass(frozen=True)
class ExpertShares:
    """The choices of all tokens of an update that have a weight in the loss.

    The balancing loss multiplies them with probabilities: with those of a pack alone, it would depend on the packs.
    """

    shares_DE: Tensor  # [D, E] share of the tokens that choose each expert
    tokens: int

    def loss(self, noted: Sequence[Routing], pack: Pack, weights_nT: Tensor) -> Tensor:
        """The part of a pack in the update's balancing loss."""
        logits_DCE = torch.stack([routing.logits_SE for routing in _counted(noted, pack, weights_nT)])
        return balance_loss(logits_DCE, self.shares_DE, tokens=self.tokens)


class RouterTerm(Term):
    """Adds `coef` times the balancing loss of a mixture's routers, over all tokens with a weight in the update."""

    reads_prefix_once = False  # what the routers choose for the prefix counts for each prompt

    def __init__(self, policy: PreTrainedModel, coef: float) -> None:
        """Raises UserError for a model without routers."""
        watch_routers(policy)
        self._policy, self._coef = policy, coef

    def moves(self, inputs: UpdateInputs, rows: Sequence[int], weights_NT: Tensor) -> Tensor:
        """Every row with a weight."""
        return (weights_NT > 0).any(1)

    def prepare(
        self, runner: PackRunner, inputs: UpdateInputs, packs: Sequence[Pack], rows: Sequence[int], weights_NT: Tensor
    ) -> PackLoss:
        """Counts the choices of all tokens before any pack's loss: see `ExpertShares`."""
        counted = runner.own(packs, lambda pack: choices(self._policy, pack, cut(pack, weights_NT))) if packs else []
        counts = chain.from_iterable(runner.ranks.gather([counts_DE.tolist() for _, counts_DE in counted], "experts"))
        tokens = int((weights_NT > 0).sum())
        shares_DE = torch.tensor(list(counts), device=runner.device).sum(0) / max(1, tokens)
        shares = ExpertShares(shares_DE, tokens)

        def pack_loss(forward: PackPass) -> tuple[Tensor, Stats]:
            aux = shares.loss(forward.routing, forward.pack, forward.tokens.weights_NT)
            return self._coef * aux, {"router_aux_loss": (aux, int(forward.tokens.mask_NT.sum()))}

        return pack_loss


def choices(model: PreTrainedModel, pack: Pack, weights_nT: Tensor) -> Tensor:
    """[D, E] numbers of the pack's tokens with a weight that choose each expert."""
    with noted_routing() as noted:
        pack_hidden(model, pack)
    counted = _counted(noted, pack, weights_nT)
    return torch.stack(
        [routing.experts_SK.flatten().bincount(minlength=routing.logits_SE.shape[1]) for routing in counted]
    )


def _counted(noted: Sequence[Routing], pack: Pack, weights_nT: Tensor) -> list[Routing]:
    """Of each layer, the routing of the tokens that predict completion tokens with a weight in the loss."""
    index_C = pack.predictors_C[weights_nT[pack.row_C, pack.column_C] > 0]
    return [routing.take(index_C) for routing in noted]
