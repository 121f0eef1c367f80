"""A GPU that a CPU pretends to be: its tensors say that they are on "cuda:0", and refuse to meet those of the CPU.

Python sees the device that `Tensor.device` and `Tensor.is_cuda` name; the numbers are computed on the CPU. A CUDA graph
is a tape, `torch.compile` of flex_attention is flex_attention itself. Nothing of this says whether a kernel of a GPU is
right; it says that the code of this path runs, gives the CPU's numbers, and keeps its tensors on one device.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tape import Tape

GPU = torch.device("cuda", 0)
# Operations of a GPU that take tensors of the CPU.
_BETWEEN = {"copy_", "index", "index_put_", "_index_put_impl_"}


class GpuTensor(Tensor):
    """A tensor of the CPU that says it is on the GPU."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "GpuTensor":
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        made.inner = inner
        return made

    device = property(lambda _: GPU)
    is_cuda = property(lambda _: True)

    def cpu(self) -> Tensor:
        return _ToCpu.apply(self)

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        made = memo[id(self)] = nn.Parameter(GpuTensor(self.inner.clone()), requires_grad=self.requires_grad)
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        apart = [tensor for tensor in given if not isinstance(tensor, GpuTensor) and tensor.dim()]
        if apart and func.overloadpacket.__name__ not in _BETWEEN:
            raise RuntimeError(f"expected all tensors of {func} on {GPU}, got one of {apart[0].shape} on the CPU")
        result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs or {}))
        if func._schema.is_mutable:
            outer = {id(_inner(tensor)): tensor for tensor in given}
            return tree_map(lambda one: outer.get(id(one), one), result)
        return tree_map(lambda one: GpuTensor(one) if isinstance(one, Tensor) else one, result)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, GpuTensor) else value


class _ToCpu(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, tensor: GpuTensor) -> Tensor:
        return tensor.inner.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return GpuTensor(gradient)


class _ToGpu(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, tensor: Tensor) -> Tensor:
        return GpuTensor(tensor.clone())

    @staticmethod
    def backward(_: Any, gradient: GpuTensor) -> Tensor:
        return gradient.inner


class _Devices(TorchFunctionMode):
    """Makes tensors on the device that a call asks for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            tensor, *others = args
            device = kwargs.pop("device", None)
            if others and isinstance(others[0], str | torch.device):
                device = others.pop(0)
            if device is not None and _is_gpu(device) != isinstance(tensor, GpuTensor):
                tensor = _ToGpu.apply(tensor) if _is_gpu(device) else tensor.cpu()
            dtypes = [other for other in others if isinstance(other, torch.dtype)]
            return func(tensor, *dtypes, **kwargs) if dtypes or kwargs else tensor
        if kwargs.get("device") is None or not _is_gpu(kwargs["device"]):
            return func(*args, **kwargs)
        made = func(*args, **kwargs | {"device": "cpu"})
        return made if isinstance(made, GpuTensor) else GpuTensor(made)


def _is_gpu(device: str | torch.device) -> bool:
    return torch.device(device).type == "cuda"


def on_gpu(model: nn.Module) -> Any:
    """Moves a model in place; weights that were one tensor stay one."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                made = moved.setdefault(id(weight), nn.Parameter(GpuTensor(weight.detach().clone())))
                module._parameters[name] = made
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = GpuTensor(buffer.clone())
    return model


class _Stream:
    """A stream on which everything has run at once."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cuda"

    def wait_stream(self, stream: "_Stream") -> None:
        assert isinstance(stream, _Stream)


class TapeGraph:
    """A CUDA graph: its capture is a tape."""

    captured = 0
    replayed = 0

    def replay(self) -> None:
        TapeGraph.replayed += 1
        self.tape.replay()


@contextmanager
def _capture(graph: TapeGraph, *, pool: object, stream: _Stream, capture_error_mode: str) -> Iterator[None]:
    assert isinstance(stream, _Stream)
    assert capture_error_mode == "thread_local"
    TapeGraph.captured += 1
    graph.tape = Tape()
    with graph.tape:
        yield
    graph.tape.spoil()


def eager_flex(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Any, **named: Any) -> Tensor:
    """flex_attention itself, on the CPU, with the mask function that the GPU would compile."""
    assert q.dtype == k.dtype == v.dtype, "flex_attention takes one dtype"
    see = block_mask.mask_mod
    cells = tuple(types.CellType(_inner(cell.cell_contents)) for cell in see.__closure__)
    sees = types.FunctionType(see.__code__, see.__globals__, closure=cells)
    mask = flex.create_block_mask(sees, None, None, q.shape[2], k.shape[2], device="cpu")
    with torch.autocast("cpu", enabled=False):
        attended = flex.flex_attention(*(tensor.cpu() for tensor in (q, k, v)), block_mask=mask, **named)
    return _ToGpu.apply(attended)


@contextmanager
def pretend_gpu(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The GPU is there, and the code's CUDA branches run."""
    autocast = torch.autocast
    patch.setattr(torch, "autocast", lambda device, *args, **named: autocast("cpu", *args, **named))
    patch.setattr(torch.cuda, "Stream", _Stream)
    patch.setattr(torch.cuda, "current_stream", _Stream)
    patch.setattr(torch.cuda, "stream", lambda stream: nullcontext(stream))
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    patch.setattr(torch.cuda, "CUDAGraph", TapeGraph)
    patch.setattr(torch.cuda, "graph", _capture)
    patch.setattr(flex, "_validate_device", lambda *_: None)  # its backward is refused on a CPU, where it works
    patch.setattr("grouprl.forward.layouts._compiled_flex", lambda: eager_flex)
    with _Devices():
        yield
