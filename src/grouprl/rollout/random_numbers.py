"""Counter-based random numbers: a pure function of (run seed, problem, completion index, token position).

There is no generator state, so a completion does not depend on its batch, its worker or a resume.
"""

from __future__ import annotations

import hashlib

from torch import Tensor

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
