"""What the kernels offer to the rest of the package: `grouprl.forward.compiled.Kernels`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from grouprl.kernels.build import setting as setting
from grouprl.kernels.build import why_no_library as why_no_library
from grouprl.kernels.calibration import timings as timings
from grouprl.kernels.calibration import uses_kernel
from grouprl.kernels.compiled_forward import DECODE_STEP, CompiledForward
from grouprl.kernels.compiled_forward import is_faster as decodes
from grouprl.kernels.compiled_weights import PRODUCT, CompiledWeights
from grouprl.kernels.functions import ADD_NORM, SWIGLU
from grouprl.kernels.llama_form import TREE_ATTENTION
from grouprl.kernels.llama_form import has_llama_form as reads
from grouprl.kernels.llama_form import llama_hidden_states as hidden_states
from grouprl.kernels.tokens import DRAW, LOGPROBS
from grouprl.kernels.tokens import append as append
from grouprl.kernels.tokens import draw as draw
from grouprl.kernels.tokens import logprobs as logprobs

__all__ = [
    "append",
    "decodes",
    "draw",
    "forwards",
    "has_draw",
    "has_logprobs",
    "hidden_states",
    "logprobs",
    "reads",
    "why_slow",
]
CONTESTS = (ADD_NORM, SWIGLU, TREE_ATTENTION, LOGPROBS, DRAW, PRODUCT, DECODE_STEP)

has_logprobs, has_draw = partial(uses_kernel, LOGPROBS), partial(uses_kernel, DRAW)


def forwards(
    model: PreTrainedModel, dtype: torch.dtype, shape: Any, count: int, prefix: Callable[[Any], Any]
) -> list[CompiledForward]:
    """As many `CompiledForward` of one model; `prefix` reads the tokens that all prompts share."""
    weights = CompiledWeights(model, dtype)
    read = prefix(partial(hidden_states, weights.decoder))
    return [CompiledForward(weights, shape, read) for _ in range(count)]


def why_slow() -> str | None:
    """Why the kernels do not run here; None = they run, or are switched off on purpose."""
    return None if setting() == "off" else why_no_library()
