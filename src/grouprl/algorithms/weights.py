"""Token weights that average the loss over tokens: the aggregations of GRPO, DAPO and Dr.GRPO."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Aggregate = Literal["sequence_mean", "token_mean", "constant"]


def token_weights(
    mask_NT: Tensor, *, aggregate: Aggregate = "sequence_mean", constant_length: int | None = None
) -> Tensor:
    """Computes each token's weight in the loss from the whole batch, so that no split of it changes the gradient.

    Args:
        mask_NT: [N, T] true (or 1) for tokens that enter the loss.
        aggregate: "sequence_mean": 1 / (N * len_i), GRPO (arXiv:2402.03300, equation 3); "token_mean":
            1 / sum(len), DAPO (arXiv:2503.14476, equation 8); "constant": 1 / (N * constant_length), Dr.GRPO
            (arXiv:2503.20783, section 3.2).
        constant_length: the fixed length of "constant", usually max_tokens.

    Returns:
        [N, T] float32, 0 outside the mask.

    Raises:
        ValueError: "constant" without a positive constant_length, or an unknown aggregate.
    """
    mask_NT = mask_NT.float()
    sequences = mask_NT.shape[0]
    if aggregate == "sequence_mean":
        return mask_NT / (sequences * mask_NT.sum(1, keepdim=True).clamp(min=1))
    if aggregate == "token_mean":
        return mask_NT / mask_NT.sum().clamp(min=1)
    if aggregate == "constant":
        if not constant_length or constant_length < 1:
            raise ValueError(f"aggregate='constant' needs a positive constant_length, got {constant_length!r}")
        return mask_NT / (sequences * constant_length)
    raise ValueError(f"aggregate: got {aggregate!r}, expected one of sequence_mean, token_mean, constant")
