"""Log-probs of given tokens, and drawn tokens, each in one pass over a row of logits (kernels/tokens.c)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grouprl.forward.logprobs import chunk_logprobs
from grouprl.forward.products import padded_chunks, product_sizes
from grouprl.kernels.calibration import Contest, Form, grid, with_gradient
from grouprl.kernels.functions import kernels, linear_logprobs, pointers
from grouprl.rollout.sampler import draw as draw_in_torch
from grouprl.rollout.sampler import uniforms
from grouprl.types import Sampling


def logprobs(
    head: nn.Linear, hidden_SH: Tensor, targets_S: Tensor, temperature: float, rows: int
) -> tuple[Tensor, Tensor]:
    """Log-probs [S] and entropies [S] of the targets, as `grouprl.forward.compiled.Kernels.logprobs`."""
    dtype, count = hidden_SH.dtype, len(targets_S)
    weight, bias = head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
    rows, padding = padded_chunks(count, rows, dtype, product_sizes(head))
    if padding:
        hidden_SH, targets_S = F.pad(hidden_SH, (0, 0, 0, padding)), F.pad(targets_S, (0, padding))
    outputs = linear_logprobs(hidden_SH, weight, bias, targets_S, temperature, rows)
    return outputs[0][:count], outputs[1][:count]


def _logprob_forms(width: int, dtype: torch.dtype) -> tuple[Form, Form]:
    # Not fewer rows than bfloat16 is filled up to (`padded_chunks`): packs have hundreds.
    rows, hidden = max(64, min(256, (1 << 18) // width)), 16
    head = nn.Linear(hidden, width, bias=False).requires_grad_(False)  # its gradient is no work of the kernel
    hidden_SH, targets_S = grid(rows, hidden, dtype=dtype), torch.arange(rows)
    return (
        with_gradient(logprobs, head, hidden_SH, targets_S, 1.0, rows),
        with_gradient(chunk_logprobs, head, hidden_SH, targets_S, Sampling(max_tokens=1), False),
    )


LOGPROBS = Contest("log-probs", "vocabulary", (512, 4096, 32_768), _logprob_forms)


def draw(logits_NV: Tensor, keys_N: Tensor, positions_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [N] and log-probs [N], tempered and plain: one pass over each row, without [N, V] arrays."""
    rows, v = logits_NV.shape
    logits_NV = logits_NV.contiguous()
    tokens_N = torch.empty(rows, dtype=torch.long)
    drawn_N, plain_N = torch.empty(2, rows)
    tensors = (logits_NV, keys_N, positions_N, tokens_N, drawn_N, plain_N)
    kernels().draw(*pointers(*tensors), rows, v, temperature, logits_NV.dtype == torch.bfloat16)
    return tokens_N, drawn_N, plain_N


def _draw_forms(width: int, dtype: torch.dtype) -> tuple[Form, Form]:
    rows = min(128, (1 << 18) // width)
    logits_NV, numbers_N = grid(rows, width, dtype=dtype).detach(), torch.arange(rows)
    return (
        lambda: draw(logits_NV, numbers_N, numbers_N, 1.0),
        lambda: draw_in_torch(logits_NV, uniforms(numbers_N, numbers_N), Sampling(max_tokens=1)),
    )


DRAW = Contest("draw", "vocabulary", (512, 4096, 32_768), _draw_forms)


def append(drawn: Sequence[Tensor], columns: Sequence[Tensor], ends: Tensor, reasons: Tensor) -> bool:
    """Writes drawn tokens into their rows; whether a row ended. As `grouprl.forward.compiled.Kernels.append`."""
    tokens_NT = columns[2]
    arguments = (len(reasons), tokens_NT.shape[1], ends.data_ptr(), len(ends), reasons.data_ptr())
    return bool(kernels().append(*pointers(*drawn, *columns), *arguments))
