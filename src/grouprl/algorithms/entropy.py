"""The high-entropy tokens of a batch, and the options that use entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.option import Part, option


def high_entropy_mask(entropies_NT: Tensor, mask_NT: Tensor, *, share: float) -> tuple[Tensor, float]:
    """Selects the `share` of the batch's tokens with the highest entropy (Wang et al., arXiv:2506.01939, equation 5).

    Args:
        entropies_NT: [N, T] entropy in nats of the distribution that each token was drawn from.
        mask_NT: [N, T] which tokens exist.
        share: in (0, 1]; 1 keeps all, the paper keeps 0.2. It selects floor(share * (n - 1)) + 1 of n tokens, which are
            those from the quantile 1 - share on, as in TRL (`get_high_entropy_mask`); in a half, the larger number.

    Returns:
        ([N, T] bool, the smallest entropy among the selected tokens).
    """
    mask_NT = mask_NT.bool()
    entropies = entropies_NT[mask_NT]
    if share >= 1 or not len(entropies):
        return mask_NT, 0.0
    highest = entropies.topk(int(share * (len(entropies) - 1)) + 1)
    # Selected by rank, not by threshold: many tokens may have an entropy of exactly 0.
    chosen = torch.zeros_like(entropies, dtype=torch.bool)
    chosen[highest.indices] = True
    return mask_NT.masked_scatter(mask_NT, chosen), float(highest.values[-1])


@dataclass(frozen=True)
class Entropy(Part):
    """An entropy bonus in the loss, or advantages for high-entropy tokens alone."""

    absent: ClassVar[Mapping[str, Any]] = {"entropy_coef": 0.0, "entropy_share": 1.0}

    entropy_coef: float = option(0.0, "bonus for entropy, in the loss", low=0.0)
    entropy_share: float = option(
        1.0, "share of the tokens, those of highest entropy, that the advantages reach", low=1e-6, high=1.0
    )
