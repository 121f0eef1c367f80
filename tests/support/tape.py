"""The operations of one call on a tape, in the place of a CUDA graph."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Tape(TorchDispatchMode):
    """The operations of one call, repeated like a CUDA graph: with the same host numbers, at the same addresses."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self._calls.append((func, args, kwargs or {}, list(tensors(result))))
        return result

    def spoil(self) -> None:
        """Overwrites the call's temporary tensors, whose memory CUDA graphs share."""
        for func, _, _, results in self._calls:
            for result in results:
                if result.is_floating_point() and not func._schema.is_mutable:
                    result.fill_(torch.nan)

    @torch.autocast("cpu", enabled=False)  # the casts are on the tape
    def replay(self) -> None:
        for func, args, kwargs, results in self._calls:
            for old, new in zip(results, tensors(func(*args, **kwargs)), strict=True):
                if old is not new:
                    old.copy_(new)


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)


class TapeRecorder:
    """A recorder on tapes that needs no GPU."""

    def __init__(self) -> None:
        self.tapes = 0
        self.replays = 0

    def warm_up(self, function: Callable[[], None]) -> None:
        function()

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        self.tapes += 1
        with Tape() as tape:
            function()
        tape.spoil()

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return replay
