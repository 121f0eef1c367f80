"""The device of the computation, and the precision, float32 or bfloat16, of computation and weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grouprl.forward.devices import GPU
from grouprl.forward.workers import one_thread
from grouprl.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Form = Callable[[], object]
"""One way to compute something, ready to be called."""

_MOST_ROUNDS = 30  # calls of a form
_SIZES = ((512, 1024, 1024), (128, 512, 512))  # rows, inner and outer of the products that are timed
_SECONDS, _GAIN = 0.05, 1.2  # for each of them; bfloat16 must be this many times as fast


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """A context with matrix products in bfloat16 over float32 weights; without effect for float32."""
    return torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()


def round_weights(model: PreTrainedModel) -> None:
    """Rounds matrices to bfloat16, in place; the sums between the layers stay float32. An adapter is not rounded."""
    trained_alone = any("lora_" in name for name, _ in model.named_parameters())
    for weight in model.parameters():
        # Norms and biases are a thousandth of the memory. Near 1 a step of bfloat16 is 2^-7: a norm would hardly learn.
        if weight.ndim > 1 and not (trained_alone and weight.requires_grad):
            weight.data = weight.data.bfloat16()
    model.get_input_embeddings().register_forward_hook(as_float32)


def as_float32(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    """Widens the output of an embedding."""
    return output.float()


def is_emulated(device: torch.device, dtype: str) -> bool:
    """Whether this processor computes products of this dtype in software, 8 times as slow as with AVX-512."""
    return (
        dtype == "bfloat16" and device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
    )


@cache  # all runs of a comparison get one answer
def faster_dtype(device: torch.device) -> Literal["float32", "bfloat16"]:
    """The dtype that model.dtype=auto means: bfloat16 where this device computes its products faster."""
    if device.type not in ("cpu", GPU):
        return "float32"
    if device.type == GPU:
        if not torch.cuda.is_available():
            raise UserError("model.dtype: expected float32 or bfloat16 for a GPU that is not here, got auto: set one")
        with torch.cuda.device(device):
            return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if is_emulated(device, "bfloat16"):
        return "float32"
    gains = []
    with one_thread():
        for rows, inner, outer in _SIZES:
            x, weight = torch.ones(rows, inner), torch.ones(outer, inner)
            products = partial(F.linear, x, weight), partial(F.linear, x.bfloat16(), weight.bfloat16())
            full, half = shortest_times(products, time.perf_counter() + _SECONDS)
            gains.append(full / half)
    return "bfloat16" if min(gains) >= _GAIN else "float32"


def shortest_times(forms: tuple[Form, Form], end: float) -> tuple[float, float]:
    """The shortest time of each form, called in turns: three times, and more often until `end`."""
    first = second = math.inf
    for number in range(_MOST_ROUNDS):
        started = time.perf_counter()
        forms[0]()
        between = time.perf_counter()
        forms[1]()
        now = time.perf_counter()
        first, second = min(first, between - started), min(second, now - between)
        if now > end and number >= 2:  # the first round also pays for memory and for what torch loads
            break
    return first, second
