"""Draws one token per row from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.models.truncation import truncated
from grouprl.types import Sampling


def draw(logits_NV: Tensor, uniforms_N: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
    """Inverts the cumulative distribution of each row at its uniform number; temperature 0 takes the largest logit.

    Args:
        logits_NV: [N, V] of the policy.
        uniforms_N: [N] float64 in [0, 1).
        sampling: temperature and truncation.

    Returns:
        [N] token ids, [N] their log-probs under the distribution drawn from (0 when greedy), [N] their log-probs
        under the plain softmax.
    """
    logits_NV = logits_NV.float()
    plain_NV = logits_NV.log_softmax(-1)
    if sampling.temperature == 0.0:
        tokens_N = logits_NV.argmax(-1)
        return tokens_N, torch.zeros_like(uniforms_N, dtype=torch.float32), _of(plain_NV, tokens_N)
    plain = sampling.temperature == 1.0 and not sampling.truncates
    logprobs_NV = plain_NV if plain else truncated(logits_NV, sampling).log_softmax(-1)
    # float64: a float32 running sum over 150,000 tokens is off by more than many tokens' probability.
    cumulative_NV = logprobs_NV.double().exp().cumsum(-1)
    aims_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    tokens_N = torch.searchsorted(cumulative_NV, aims_N1, right=True)[:, 0].clamp(max=logits_NV.shape[1] - 1)
    return tokens_N, _of(logprobs_NV, tokens_N), _of(plain_NV, tokens_N)


def _of(values_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return values_NV.gather(1, tokens_N[:, None])[:, 0]
