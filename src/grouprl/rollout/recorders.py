"""Recording of a function that works on tensors of fixed addresses alone, so that it can be played without Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Their shapes depend on values only where an index is a mask; index_put and copy_ of masks carry no tag at all.
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
_VALUE_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Recorder(Protocol):
    """Turns calls of a function into plays of what it did."""

    def warm_up(self, function: Callable[[], None]) -> None:
        """Calls the function in the surroundings that it is going to be recorded in."""
        ...

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """What repeats the function's work on the tensors' contents of that time; recording may not do the work."""
        ...


class Uncaptured:
    """Calls the function itself every time: the CPU, and models that cannot be recorded."""

    def warm_up(self, function: Callable[[], None]) -> None:
        """See `Recorder.warm_up`."""
        function()

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """See `Recorder.record`."""
        return function


class CudaGraphs:
    """CUDA graphs in one memory pool: a play is one launch in the place of a thousand.

    The graphs share the memory of what lives only within a play, so they are played one after the other, and every
    result must be copied to a tensor from before the recording.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], None]) -> None:
        """See `Recorder.warm_up`; on the recording's stream, where cuBLAS then has its workspace already."""
        usual = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            function()
        usual.wait_stream(self._stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """See `Recorder.record`."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            function()
        replay: Callable[[], None] = graph.replay
        return replay


class HostReads(TorchDispatchMode):
    """Notes every operation whose result on the host, or whose shape, depends on what tensors hold.

    One of them makes the host wait for the device, and a recording would repeat what it found the first time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _depends_on_values(func, args) or _crosses_devices(args, result):
            self.found.append(str(func))
        return result


def _depends_on_values(operation: Any, arguments: Any) -> bool:
    if operation in _INDEXING:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1])
    return not _VALUE_TAGS.isdisjoint(operation.tags)


def _crosses_devices(arguments: Any, result: Any) -> bool:
    # A number as a tensor of no dimensions is passed to a kernel like a number.
    devices = {tensor.device for tensor in (*_tensors(arguments), *_tensors(result)) if tensor.dim() or tensor.is_cuda}
    return len(devices) > 1


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
