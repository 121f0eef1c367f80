"""Measures this machine: memory, and the rates of matrix products and reads, in about a second."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from grouprl.forward.devices import GPU, accelerator

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SECONDS = 0.35  # for each measurement
_ROWS = {"cpu": (1024, 1024, 1024), GPU: (8192, 8192, 8192)}  # other accelerators are measured as a GPU
# Bytes. Small blocks stay in a cache, as the weights of a small model do; the others exceed every cache.
_BLOCKS = {"cpu": (16 << 20, 256 << 20), GPU: (16 << 20, 2 << 30)}


@dataclass(frozen=True)
class Rates:
    """The highest rates of a machine."""

    flops: float  # floating-point operations per second, in products of the computation's dtype
    bandwidth: float  # bytes read per second


def total_memory(device_type: str) -> int:
    """Returns the memory in bytes of the first GPU, or of this machine or its container, which some GPUs share."""
    module: Any = torch.get_device_module(device_type) if device_type == accelerator() else None
    if hasattr(module, "get_device_properties"):
        return int(module.get_device_properties(0).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdecimal() else total


def free_memory(device_type: str) -> int:
    """Returns the free memory in bytes of the first GPU or of this machine."""
    module: Any = torch.get_device_module(device_type) if device_type == accelerator() else None
    if hasattr(module, "mem_get_info"):
        return int(module.mem_get_info(0)[0])
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text().splitlines() if meminfo.is_file() else ():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) << 10, total_memory("cpu"))
    return total_memory("cpu")


def product_rate(device_type: str, dtype: str, sizes: tuple[int, int, int] | None = None) -> float:
    """Measures the FLOPs per second of a large matrix product.

    With `sizes`, its rows, inputs and outputs, of one after another with weights that exceed the caches together.
    """
    rows, inner, outer = sizes or _ROWS.get(device_type, _ROWS[GPU])
    x = torch.ones(rows, inner, dtype=DTYPES[dtype], device=device_type)
    size = inner * outer * x.element_size()
    count = -(-_BLOCKS.get(device_type, _BLOCKS[GPU])[1] // 2 // size) if sizes else 1
    weights = torch.ones(count, outer, inner, dtype=DTYPES[dtype], device=device_type)

    def products() -> None:
        for weight in weights:
            F.linear(x, weight)

    return count * 2 * rows * inner * outer / _best(products, device_type)


def read_rate(device_type: str, size: float) -> float:
    """Measures the bytes per second of summing a block of about `size` bytes."""
    block = min(_BLOCKS.get(device_type, _BLOCKS[GPU]), key=lambda block: abs(math.log(block / size)))
    values = torch.ones(block // 4, device=device_type)
    return block / _best(values.sum, device_type)


def _best(act: Callable[[], object], device_type: str) -> float:
    """Returns the seconds of the fastest of several calls, at least two, after a warm-up call."""
    wait = (lambda: None) if device_type == "cpu" else torch.get_device_module(device_type).synchronize
    act()
    times: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(times) < 2 or time.perf_counter() < until:
        wait()
        started = time.perf_counter()
        act()
        wait()
        times.append(time.perf_counter() - started)
    return min(times)
