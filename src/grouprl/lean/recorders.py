"""Records a function that works only on tensors of fixed addresses, so that it can be replayed without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations whose shapes depend on values only where an index is a mask; torch tags index_put of a mask with nothing.
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
_VALUE_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class CudaGraphs:
    """A `rollout.forward.Recorder` of CUDA graphs in one memory pool: a replay is one launch instead of a thousand.

    The graphs share the memory of their temporary tensors. They must be replayed one after the other, and every result
    must be copied to a tensor from before the recording.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], None]) -> None:
        """Runs the function once, on the recording's stream, where cuBLAS then allocates its workspace."""
        usual = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            function()
        usual.wait_stream(self._stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Records the function as a CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as NCCL's, may do what a recording forbids to its own.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            function()
        replay: Callable[[], None] = graph.replay
        return replay


class HostReads(TorchDispatchMode):
    """Finds the operations whose host result, or whose shape, depends on the contents of tensors.

    Such an operation makes the host wait for the device, and a recording would repeat its first result.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _INDEXING:
            depends_on_values = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        else:
            depends_on_values = not _VALUE_TAGS.isdisjoint(func.tags)
        tensors = (leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor))
        # A CPU tensor without dimensions is passed to a kernel by value.
        devices = {tensor.device for tensor in tensors if tensor.dim() or tensor.is_cuda}
        if depends_on_values or len(devices) > 1:
            self.found.append(str(func))
        return result
