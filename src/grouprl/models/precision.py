"""The dtype of the computation; weights are always float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 over float32 weights, or nothing for float32."""
    return torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()


def is_emulated(device: torch.device, dtype: str) -> bool:
    """Whether this processor makes such products in software: 8 times as slow without AVX-512."""
    return (
        dtype == "bfloat16" and device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
    )


# oneDNN compiles a bfloat16 product for each number of rows it meets, and keeps 1,024 of them: 0.3 ms and 0.7 MiB each
# on a Zen 5 core (torch 2.13). So few numbers of rows are made to occur. MKL's float32 products compile nothing.
_PACK_ROWS, _DECODE_ROWS = 64, 8


def padded_rows(rows: int, *, decoding: bool = False) -> int:
    """The rows that a bfloat16 product on the CPU is given for so many."""
    step = _DECODE_ROWS if decoding else _PACK_ROWS
    return -(-rows // step) * step
