"""The precision of the computation, float32 or bfloat16; weights are always float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """A context with matrix products in bfloat16 over float32 weights; without effect for float32."""
    return torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()


def is_emulated(device: torch.device, dtype: str) -> bool:
    """Whether this processor computes products of this dtype in software, 8 times as slow as with AVX-512."""
    return (
        dtype == "bfloat16" and device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
    )


# oneDNN compiles a bfloat16 product for each new number of rows and caches 1,024 of them: 0.3 ms and 0.7 MiB each on a
# Zen 5 core (torch 2.13). Padding keeps the numbers of rows few. MKL's float32 products compile nothing.
_PACK_ROWS, _DECODE_ROWS = 64, 8


def padded_rows(rows: int, *, decoding: bool = False) -> int:
    """The number of rows, padding included, of a bfloat16 product on the CPU."""
    step = _DECODE_ROWS if decoding else _PACK_ROWS
    return -(-rows // step) * step
