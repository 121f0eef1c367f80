"""Which tokens are decisions: those of high entropy."""

from __future__ import annotations

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
    kept = max(1, round(share * len(entropies)))
    threshold = float(entropies.kthvalue(len(entropies) - kept + 1).values)
    return mask_NT & (entropies_NT >= threshold), threshold
