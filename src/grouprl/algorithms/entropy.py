"""Which tokens are decisions: those of high entropy."""

from __future__ import annotations

import torch
from torch import Tensor


def high_entropy_mask(entropies_NT: Tensor, mask_NT: Tensor, *, share: float) -> tuple[Tensor, float]:
    """The tokens among the `share` of highest entropy of the batch (Wang et al., arXiv:2506.01939, equation 5).

    Args:
        entropies_NT: [N, T] entropy in nats of the distribution that each token was drawn from.
        mask_NT: [N, T] which tokens exist.
        share: in (0, 1]; 1 keeps all, the paper keeps 0.2.

    Returns:
        ([N, T] bool, the smallest entropy kept).
    """
    mask_NT = mask_NT.bool()
    entropies = entropies_NT[mask_NT]
    if share >= 1 or not len(entropies):
        return mask_NT, 0.0
    highest = entropies.topk(max(1, round(share * len(entropies))))
    # By place and not by the threshold: many tokens may have an entropy of exactly 0.
    chosen = torch.zeros_like(entropies, dtype=torch.bool)
    chosen[highest.indices] = True
    chosen_NT = torch.zeros_like(mask_NT)
    chosen_NT[mask_NT] = chosen
    return chosen_NT, float(highest.values[-1])
