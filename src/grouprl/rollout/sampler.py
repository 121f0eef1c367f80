"""The token sampler draws one token per row from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.models.truncation import truncate_logits
from grouprl.types import Sampling


def draw(logits_NV: Tensor, uniforms_N: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
    """Inverts the cumulative distribution of each row at its uniform number; temperature 0 takes the largest logit.

    Args:
        logits_NV: [N, V] logits of the policy.
        uniforms_N: [N] float64 in [0, 1).
        sampling: temperature and truncation.

    Returns:
        [N] token ids, [N] log-probs under the distribution they were drawn from (0 when greedy), and [N] log-probs
        under the plain softmax.
    """
    logits_NV = logits_NV.float()
    plain_NV = logits_NV.log_softmax(-1)
    if sampling.temperature == 0.0:
        tokens_N = logits_NV.argmax(-1)
        return tokens_N, torch.zeros_like(uniforms_N, dtype=torch.float32), _gather(plain_NV, tokens_N)
    plain = sampling.temperature == 1.0 and not sampling.truncates
    logprobs_NV = plain_NV if plain else truncate_logits(logits_NV, sampling).log_softmax(-1)
    # In float64: the error of a float32 running sum over 150,000 tokens exceeds the probability of many tokens.
    cumulative_NV = logprobs_NV.double().exp().cumsum(-1)
    aims_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    tokens_N = torch.searchsorted(cumulative_NV, aims_N1, right=True)[:, 0].clamp(max=logits_NV.shape[1] - 1)
    return tokens_N, _gather(logprobs_NV, tokens_N), _gather(plain_NV, tokens_N)


def _gather(values_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return values_NV.gather(1, tokens_N[:, None])[:, 0]
