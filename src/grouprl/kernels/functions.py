"""The kernels as differentiable functions of torch; every tensor is on the CPU, float32 or bfloat16."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from grouprl.forward.logprobs import KEPT_LOGITS
from grouprl.kernels.build import library
from grouprl.kernels.calibration import Contest, Form, grid, uses_kernel, with_gradient

_WIDTH = 16  # floats of the widest vector of the kernels
_TIMED = 1 << 18  # numbers in a tensor with which norms and SwiGLU are timed: a millisecond


def fits(*sizes: int) -> bool:
    """Whether the kernels exist and support rows of these sizes."""
    return all(size % _WIDTH == 0 for size in sizes) and library() is not None


def kernels() -> SimpleNamespace:
    """The compiled kernels, for callers that asked `fits` first."""
    loaded = library()
    assert loaded is not None, "the kernels could not be compiled: call fits() first"
    return loaded


def pointers(*tensors: Tensor | None) -> list[int | None]:
    """The addresses of tensors as arguments of a kernel; the caller keeps a reference to each until it returns."""
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The sum x + delta, and its RMS norm times weight in `dtype`.

    Args:
        x: [S, H] float32.
        delta: [S, H], float32 or bfloat16; None = 0.
        weight: [H] float32.
        eps: added to the mean square.
        dtype: of the second result.
    """
    if not uses_kernel(ADD_NORM, x.shape[1], dtype):
        return _add_norm_in_torch(x, delta, weight, eps, dtype)
    total, normed = _AddNorm.apply(x, delta, weight, eps, dtype)  # type: ignore[no-untyped-call]
    return total, normed


def _add_norm_in_torch(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    total = x if delta is None else x + delta
    inverse = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
    return total, (total * inverse * weight).to(dtype)


def _add_norm_forms(width: int, dtype: torch.dtype) -> tuple[Form, Form]:
    shape = (_TIMED // width, width)
    inputs = (grid(*shape), grid(*shape, dtype=dtype), grid(width), 1e-6, dtype)
    return with_gradient(_AddNorm.apply, *inputs), with_gradient(_add_norm_in_torch, *inputs)


ADD_NORM = Contest("add_norm", "hidden size", (256, 1024, 4096), _add_norm_forms)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up for tensors of one shape and dtype."""
    if not uses_kernel(SWIGLU, gate.shape[-1], gate.dtype):
        return F.silu(gate) * up
    result: Tensor = _SwiGlu.apply(gate, up)  # type: ignore[no-untyped-call]
    return result


def _swiglu_forms(width: int, dtype: torch.dtype) -> tuple[Form, Form]:
    inputs = [grid(_TIMED // width, width, dtype=dtype) for _ in range(2)]
    return with_gradient(_SwiGlu.apply, *inputs), with_gradient(lambda gate, up: F.silu(gate) * up, *inputs)


SWIGLU = Contest("swiglu", "MLP size", (512, 2048, 8192), _swiglu_forms)


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cosine: Tensor,
    sine: Tensor,
    tree: tuple[Tensor, Tensor],
    scaling: float,
    window: int,
    prefix: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Applies rotary positions and computes the attention of packed groups.

    Args:
        query: [S, heads, d]; key, value: [S, kv_heads, d]; without positions applied, all of one dtype, d <= 512.
            The results of tokens after the last one of the tree are 0.
        cosine, sine: [S, d] float32.
        tree: starts and lengths, int64 [P, 1 + G], of the prompt and then of its completions; length 0 = none.
        scaling: multiplies the scores.
        window: a token sees this many, itself included.
        prefix: keys, with positions applied, and values of the tokens before all prompts, [F, kv_heads, d] float32.

    Returns:
        [S, heads, d].
    """
    before = prefix or (torch.empty(0, *key.shape[1:]),) * 2
    result: Tensor = _TreeAttention.apply(query, key, value, cosine, sine, *tree, scaling, window, *before)  # type: ignore[no-untyped-call]
    return result


def linear_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, rows: int
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target under softmax((hidden @ weight.T + bias) / temperature), and that softmax's entropy.

    Args:
        hidden: [S, H]; weight: [V, H]; bias: [V] or None; all of one dtype.
        targets: [S] token ids.
        temperature: above 0.
        rows: rows of logits in memory at once; the backward pass computes them again.

    Returns:
        [S] float32 each; the entropies take no gradient.
    """
    logprobs, entropies = _LinearLogprobs.apply(hidden, weight, bias, targets, temperature, rows)  # type: ignore[no-untyped-call]
    return logprobs, entropies


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, rows: int
    ) -> Any:
        logprobs, entropies, lse = outputs = [torch.empty(len(targets)) for _ in range(3)]
        logits = torch.empty(0)
        for at in range(0, len(targets), rows):
            del logits  # first, so that two chunks are never in memory
            logits = F.linear(hidden[at : at + rows], weight, bias)
            columns = [values[at : at + rows] for values in (targets, *outputs)]
            kernels().logprobs(*pointers(logits, *columns), *logits.shape, 1 / temperature, _half(logits))
        # A single small chunk is kept: its memory costs less than the time to compute it again.
        kept_logits = logits if logits.shape[0] == len(targets) and logits.numel() <= KEPT_LOGITS else None
        ctx.save_for_backward(hidden, weight, bias, targets, lse, kept_logits)
        ctx.factor, ctx.rows = 1 / temperature, rows
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_logprobs: Tensor, _: Tensor) -> Any:
        hidden, weight, bias, targets, lse, kept_logits = ctx.saved_tensors
        d_logprobs = d_logprobs.contiguous()
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        logits = torch.empty(0)
        for at in range(0, len(targets), ctx.rows):
            part = slice(at, at + ctx.rows)
            del logits  # first, so that two chunks are never in memory
            logits = F.linear(hidden[part], weight, bias) if kept_logits is None else kept_logits.clone()
            columns = (values[part] for values in (targets, lse, d_logprobs))
            kernels().logprobs_backward(*pointers(logits, *columns), *logits.shape, ctx.factor, _half(logits))
            torch.mm(logits, weight, out=d_hidden[part])
            if d_weight is not None:
                d_weight.addmm_(logits.T, hidden[part])
            if d_bias is not None:
                d_bias += logits.sum(0)
        return d_hidden, d_weight, d_bias, None, None, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Any:
        rows, h = x.shape
        x, delta = x.contiguous(), None if delta is None else delta.contiguous()
        total = x if delta is None else torch.empty_like(x)
        normed, inverse = torch.empty(rows, h, dtype=dtype), torch.empty(rows)
        kernels().add_norm(
            *pointers(x, delta, weight, None if delta is None else total, normed, inverse),
            rows,
            h,
            eps,
            _half(delta),
            _half(normed),
        )
        ctx.save_for_backward(total, weight, inverse)
        ctx.delta_dtype = None if delta is None else delta.dtype
        ctx.set_materialize_grads(False)
        return x.view_as(x) if delta is None else total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor | None, d_normed: Tensor | None) -> Any:
        total, weight, inverse = ctx.saved_tensors
        if d_normed is None:
            return d_total, None if d_total is None else d_total.to(ctx.delta_dtype), None, None, None
        rows, h = total.shape
        d_normed = d_normed.contiguous()
        d_total = None if d_total is None else d_total.contiguous()
        dx = torch.empty_like(total)
        halved = torch.empty_like(total, dtype=torch.bfloat16) if ctx.delta_dtype == torch.bfloat16 else None
        d_weight = torch.empty_like(weight) if ctx.needs_input_grad[2] else None
        kernels().norm_backward(
            *pointers(total, weight, inverse, d_normed, d_total, dx, halved, d_weight),
            rows,
            h,
            _half(d_normed),
        )
        d_delta = None if ctx.delta_dtype is None else dx if halved is None else halved
        return dx, d_delta, d_weight, None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Any:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        kernels().swiglu(*pointers(gate, up, out), out.numel(), _half(gate))
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        d_out, d_gate, d_up = d_out.contiguous(), torch.empty_like(gate), torch.empty_like(up)
        kernels().swiglu_backward(*pointers(gate, up, d_out, d_gate, d_up), gate.numel(), _half(gate))
        return d_gate, d_up


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cosine: Tensor,
        sine: Tensor,
        starts: Tensor,
        lengths: Tensor,
        scaling: float,
        window: int,
        prefix_keys: Tensor,
        prefix_values: Tensor,
    ) -> Any:
        tensors = tuple(tensor.contiguous() for tensor in (query, key, value, cosine, sine))
        prefix = prefix_keys.contiguous(), prefix_values.contiguous()
        ctx.used = int(lengths.sum())
        out = _zero_beyond(torch.empty_like(tensors[0]), ctx.used)
        groups, branches = starts.shape
        ctx.sizes = (groups, branches - 1, query.shape[1], *key.shape[1:], scaling, _half(query), window)
        kernels().tree_attention(
            *pointers(*tensors, out, starts, lengths), *ctx.sizes, *pointers(*prefix), len(prefix_keys)
        )
        ctx.save_for_backward(*tensors, *prefix, starts, lengths)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Any:
        *tensors, prefix_keys, prefix_values, starts, lengths = ctx.saved_tensors
        d_out = d_out.contiguous()
        gradients = [_zero_beyond(torch.empty_like(tensor), ctx.used) for tensor in tensors[:3]]
        # Of each group, so that their sum does not depend on the order in which threads take the groups.
        of_groups = [torch.empty(len(starts), *prefix_keys.shape) for _ in range(2)]
        kernels().tree_attention_backward(
            *pointers(*tensors, d_out, *gradients, starts, lengths),
            *ctx.sizes,
            *pointers(prefix_keys, prefix_values),
            len(prefix_keys),
            *pointers(*of_groups),
        )
        return (*gradients, None, None, None, None, None, None, *(gradient.sum(0) for gradient in of_groups))


def _zero_beyond(tensor: Tensor, rows: int) -> Tensor:
    tensor[rows:] = 0
    return tensor


def _half(tensor: Tensor | None) -> int:
    return int(tensor is not None and tensor.dtype == torch.bfloat16)
