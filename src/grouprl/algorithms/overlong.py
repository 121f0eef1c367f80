"""The length penalty of DAPO: it grows as a completion approaches its token limit."""

from __future__ import annotations

from torch import Tensor


def overlong_penalty(lengths_N: Tensor, *, max_tokens: int, buffer: float) -> Tensor:
    """Computes the soft overlong punishment (DAPO, arXiv:2503.14476, equation 13), which is added to the reward.

    Args:
        lengths_N: [N] tokens of each completion, at most max_tokens.
        max_tokens: the limit of a completion's length.
        buffer: share of max_tokens, in [0, 1], over which the penalty goes from 0 to -1.

    Returns:
        [N] float64 in [-1, 0]: 0 up to (1 - buffer) * max_tokens, then linear, -1 at max_tokens.
    """
    width = buffer * max_tokens
    if width == 0:
        return lengths_N.double() * 0.0
    return -((lengths_N.double() - (max_tokens - width)) / width).clamp(0.0, 1.0)
