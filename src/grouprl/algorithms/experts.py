"""The loss that balances the experts of a mixture, and its option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.option import Part, option


def balance_loss(logits_DCE: Tensor, shares_DE: Tensor, *, tokens: int) -> Tensor:
    """The part of some tokens in the batch's balancing loss (Switch Transformer, arXiv:2101.03961, equation 4).

    The loss of a layer is E * sum over experts e of shares[e] * (mean of p[e] over the batch's tokens); it is averaged
    over the layers. The shares are constants, so the parts of any division of the tokens add up to the whole.

    Args:
        logits_DCE: [D, C, E] router logits of C of the batch's tokens; p is their softmax.
        shares_DE: [D, E] share of the batch's tokens that choose each expert; with K experts a token they sum to K, so
            that the loss is K when every expert gets as many tokens as the others.
        tokens: number of the batch's tokens.
    """
    experts = logits_DCE.shape[-1]
    means_DE = logits_DCE.softmax(-1, torch.promote_types(logits_DCE.dtype, torch.float32)).sum(1) / tokens
    return experts * (shares_DE * means_DE).sum(-1).mean()


@dataclass(frozen=True)
class Experts(Part):
    """A loss that balances the experts of a mixture."""

    absent: ClassVar[Mapping[str, Any]] = {"router_aux_coef": 0.0}

    router_aux_coef: float = option(0.0, "weight of the loss that balances the experts of a mixture", low=0.0)
