"""Times each kernel against torch once per machine; code then asks `uses_kernel`, so that no kernel makes a run slower.

A choice depends on the model's sizes and the dtype, never on the rows, tokens or threads of a call. The times are kept
in a file beside the compiled library and under its key, so that a resumed run and other processes choose the same.
"""

from __future__ import annotations

import json
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grouprl.forward.precision import Form as Form
from grouprl.forward.precision import autocast, is_emulated, shortest_times
from grouprl.forward.workers import one_thread
from grouprl.kernels.build import library, library_file, setting

_LOCK_SECONDS = 60.0  # then another process is stuck: measure beside it
_SECONDS = 0.25  # for one contest: all seven take less than two seconds
# Torch must be this many times as fast: so that noise does not change the choice, and in bfloat16 because an operation
# that rounds otherwise than a decode step's moves log-probs from the sampler's by 0.3 nats.
_MARGINS = {"float32": 1.1, "bfloat16": 1.5}


@dataclass(frozen=True, eq=False)
class Contest:
    """A kernel and torch code for the same result, on inputs of three widths.

    `forms` makes both for a width and a dtype, the kernel first; a form of a differentiable function computes its
    gradient too.
    """

    name: str
    size: str  # what the width is, for people
    widths: tuple[int, int, int]
    forms: Callable[[int, torch.dtype], tuple[Form, Form]]


@dataclass(frozen=True)
class Timing:
    """The shortest times of both forms on inputs of one width."""

    width: int
    dtype: str  # float32 or bfloat16
    kernel: float  # seconds
    torch: float  # seconds

    @property
    def kernel_wins(self) -> bool:
        """Whether the kernel is chosen for this width and widths near it."""
        return self.kernel < _MARGINS[self.dtype] * self.torch


def uses_kernel(contest: Contest, width: int, dtype: torch.dtype) -> bool:
    """Whether a kernel exists and is no slower than torch at the nearest timed width; the first call times both."""
    return library() is not None and _kernel_wins(contest, width, dtype)


@cache
def _kernel_wins(contest: Contest, width: int, dtype: torch.dtype) -> bool:
    if setting() == "on":
        return True
    times = timings(contest)
    # bfloat16 is not timed where it is emulated.
    same = [timing for timing in times if timing.dtype == str(dtype).removeprefix("torch.")] or times
    return min(same, key=lambda timing: abs(math.log(timing.width / width))).kernel_wins


def timings(contest: Contest) -> Sequence[Timing]:
    """The times of a contest, from the file beside the library or measured now; needs `library`."""
    compiled = library_file()
    assert compiled is not None, "the kernels could not be compiled"
    with _LOCK:
        if contest not in _KNOWN:
            with _alone(compiled):
                _KNOWN[contest] = _read_or_measured(contest, compiled.with_suffix(".json"))
        return _KNOWN[contest]


_LOCK = threading.Lock()
_KNOWN: dict[Contest, Sequence[Timing]] = {}


def _read_or_measured(contest: Contest, file: Path) -> Sequence[Timing]:
    contents: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # missing or damaged
        contents = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(contents, dict) or contents.get("torch") != torch.__version__:
        contents = {}
    times: list[Timing] = []
    with suppress(TypeError):  # missing or senseless
        times = [Timing(**entry) for entry in contents.get(contest.name, ())]
    seconds = [number for timing in times for number in (timing.kernel, timing.torch)]
    sound = all(isinstance(number, int | float) and 0 < number < math.inf for number in seconds)
    if not sound or [(timing.width, timing.dtype) for timing in times] != _shapes(contest):
        with ThreadPoolExecutor(1) as pool:
            times = pool.submit(_measure, contest).result()
        contents |= {"torch": torch.__version__, contest.name: [asdict(timing) for timing in times]}
        # Renamed, so that no process reads half a file. Where writing fails, this process keeps its times to itself.
        with suppress(OSError), tempfile.TemporaryDirectory(dir=file.parent) as folder:
            new_file = Path(folder) / file.name
            new_file.write_text(json.dumps(contents, indent=1), encoding="utf-8")
            new_file.replace(file)
    return times


def _shapes(contest: Contest) -> list[tuple[int, str]]:
    dtypes = [name for name in ("float32", "bfloat16") if not is_emulated(torch.device("cpu"), name)]
    return [(width, dtype) for dtype in dtypes for width in contest.widths]


@contextmanager
def _alone(compiled: Path) -> Iterator[None]:
    """Holds a lock between processes, so that those that start together choose the same."""
    import fcntl  # not on Windows, where there are no kernels

    with compiled.open("rb") as opened:
        until = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < until:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a file system without locks
                break
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_UN)  # closing would not unlock it for a process forked meanwhile


def _measure(contest: Contest) -> list[Timing]:
    """Times a contest; called in a new thread, which has none of the caller's modes, such as autocast or `no_grad`."""
    times: list[Timing] = []
    shapes, end = _shapes(contest), time.perf_counter() + _SECONDS
    with one_thread(), torch.random.fork_rng(devices=[]):
        for width, dtype in shapes:
            now = time.perf_counter()
            forms = contest.forms(width, getattr(torch, dtype))
            with autocast(torch.device("cpu"), dtype):
                until = now + (end - now) / (len(shapes) - len(times))
                times.append(Timing(width, dtype, *shortest_times(forms, until)))
    return times


def grid(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of numbers between -1 and 1 that takes a gradient, for the forms of a contest."""
    return torch.linspace(-1, 1, math.prod(shape)).view(shape).to(dtype).requires_grad_()


def with_gradient(function: Callable[..., Any], *inputs: Any) -> Form:
    """The form that computes a function of tensors, and its gradient in those inputs that take one."""
    leaves = [value for value in inputs if isinstance(value, Tensor) and value.requires_grad]

    def form() -> None:
        output = function(*inputs)
        results = [result for result in (output if isinstance(output, tuple) else (output,)) if result.requires_grad]
        torch.autograd.grad(results, leaves, [result.detach() for result in results])

    return form
