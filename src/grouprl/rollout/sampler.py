"""The token sampler draws one token per row from logits, at counter-based random numbers.

A random number is a pure function of (run seed, problem, completion index, token position). There is no generator
state, so a completion does not depend on its batch, its worker or a resume.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from grouprl.forward.logprobs import penalize, truncate_logits
from grouprl.types import Sampling

# SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), as signed 64-bit.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def row_key(seed: int, stream: str, problem_id: str, index: int) -> int:
    """The signed 64-bit key of one completion."""
    text = f"{seed}\x1f{stream}\x1f{problem_id}\x1f{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


def uniforms(keys_N: Tensor, positions_N: Tensor) -> Tensor:
    """The random number of each key at its token position, [N] float64 in [0, 1).

    Args:
        keys_N: [N] int64 from `row_key`.
        positions_N: [N] int64 position within the completion.
    """
    state_N = keys_N + (positions_N + 1) * _GOLDEN
    state_N = (state_N ^ _shift(state_N, 30)) * _MIX_1
    state_N = (state_N ^ _shift(state_N, 27)) * _MIX_2
    state_N = state_N ^ _shift(state_N, 31)
    return _shift(state_N, 11).double() * 2.0**-53


def _shift(state_N: Tensor, bits: int) -> Tensor:
    # int64 shifts copy the sign bit; the mask gives the unsigned shift of the algorithm.
    return (state_N >> bits) & ((1 << (64 - bits)) - 1)


def draw(
    logits_NV: Tensor,
    uniforms_N: Tensor,
    sampling: Sampling,
    seen_NV: Tensor | None = None,
    states_N: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Inverts the cumulative distribution of each row at its uniform number; temperature 0 takes the largest logit.

    Args:
        logits_NV: [N, V] logits of the policy.
        uniforms_N: [N] float64 in [0, 1).
        sampling: temperature, truncation, repetition penalty and structure.
        seen_NV: [N, V] bool, tokens that stand before; needed for a repetition penalty.
        states_N: [N] int64 states of the structure's automaton; needed for a structure.

    Returns:
        [N] token ids, [N] log-probs under the distribution they were drawn from (0 when greedy), and [N] log-probs
        under the plain softmax.
    """
    logits_NV = logits_NV.float()
    plain_NV = logits_NV.log_softmax(-1)
    logits_NV = allowed(logits_NV, sampling, seen_NV, states_N)
    if sampling.temperature == 0.0:
        tokens_N = logits_NV.argmax(-1)
        return tokens_N, torch.zeros_like(uniforms_N, dtype=torch.float32), _gather(plain_NV, tokens_N)
    plain = sampling.temperature == 1.0 and sampling.only_scales
    logprobs_NV = plain_NV if plain else truncate_logits(logits_NV, sampling).log_softmax(-1)
    # In float64: the error of a float32 running sum over 150,000 tokens exceeds the probability of many tokens.
    cumulative_NV = logprobs_NV.double().exp().cumsum(-1)
    aims_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    tokens_N = torch.searchsorted(cumulative_NV, aims_N1, right=True)[:, 0].clamp(max=logits_NV.shape[1] - 1)
    return tokens_N, _gather(logprobs_NV, tokens_N), _gather(plain_NV, tokens_N)


def allowed(
    logits_NV: Tensor, sampling: Sampling, seen_NV: Tensor | None = None, states_N: Tensor | None = None
) -> Tensor:
    """[N, V] logits after the repetition penalty and the structure; for the arguments see `draw`."""
    if sampling.penalizes:
        assert seen_NV is not None
        logits_NV = penalize(logits_NV, seen_NV, sampling)
    if sampling.structure is not None:
        assert states_N is not None
        logits_NV = sampling.structure.restrict(logits_NV, states_N)
    return logits_NV


def _gather(values_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return values_NV.gather(1, tokens_N[:, None])[:, 0]
