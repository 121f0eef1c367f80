"""The dtype of the computation; weights are always float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 over float32 weights, or nothing for float32."""
    return torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
