"""Calls a reward function inside a worker process, under limits, and checks the values that it returns."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from grouprl.rewards.invalid import Invalid
from grouprl.rewards.reward_logs import OUTSIDE, PROVIDED, Extra, RewardLog, TrainingState
from grouprl.rewards.workers.frames import receive_frame, send_frame
from grouprl.rewards.workers.parcels import unpack
from grouprl.rewards.workers.printed import Printed

OWN_KEYWORDS = ("prompts", "completions", "completion_ids", *PROVIDED)
LARGEST = 1e30  # largest value: squares of rewards and their sums must stay finite
_MIB = 1 << 20
_HERE = Path(__file__).parent
_dumps = json.dumps  # a reference taken now, because a reward function may replace json.dumps

_T = TypeVar("_T")
Value = float | None | Invalid | tuple[tuple[int, float], ...]
"""The value of one completion; a process reward gives pairs of (end, value)."""


@dataclass(frozen=True)
class Called:
    """What a call gave."""

    values: Sequence[Value]  # one for each completion
    extra: Mapping[str, Sequence[Extra]]  # columns that it logged, with a value for each completion
    metrics: Sequence[tuple[str, float]] = ()  # numbers that it logged, by name


PendingValues = Future[Any]
"""The `Called` of one call; after a failure, a list of `PendingValues`, one for each completion, called alone."""


class WrongCountError(ValueError):
    """A function did not return one value per completion."""


@dataclass(frozen=True)
class Signature:
    """The arguments that a reward function accepts."""

    required: tuple[str, ...]  # columns that it needs
    accepted: tuple[str, ...] | None  # None = all columns
    one_of: tuple[str, ...] = ()  # columns of which it needs one

    @property
    def provided(self) -> tuple[str, ...]:
        """Those of PROVIDED that it accepts."""
        return tuple(name for name in PROVIDED if self.accepted is None or name in self.accepted)

    def arguments(self, keywords: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Selects the accepted keywords; a required column that a problem lacks is None, as in TRL's data sets."""
        count = len(keywords["completions"])
        missing = {name: [None] * count for name in self.required if name not in keywords}
        return {name: v for name, v in keywords.items() if self.accepted is None or name in self.accepted} | missing


def signature(function: Callable[..., Any]) -> Signature:
    """Reads the signature of a function. Raises TypeError if it cannot be called with keywords."""
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise TypeError(f"expected parameters that can be given by name, got {parameter.name!r} by position only")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = tuple(p.name for p in named if p.default is p.empty and p.name not in OWN_KEYWORDS)
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = None if everything else tuple(p.name for p in named)
    return Signature(required, accepted, getattr(function, "needs_one_of", ()))


def call(
    function: Callable[..., Any],
    arguments: Mapping[str, Sequence[Any]],
    completions: Sequence[Any],
    *,
    provided: Sequence[str] = (),
    state: TrainingState = OUTSIDE,
    per_step: bool = False,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> Called:
    """Calls a function; returns one value per completion. A result that is not a number becomes `Invalid`.

    `provided` names those of PROVIDED that the function gets; `run` runs a coroutine to its end. Raises the function's
    exceptions, and WrongCountError unless it returns a list with one value per completion.
    """
    log = RewardLog(len(completions))
    offered = dict(zip(PROVIDED, (state, log.log_extra, log.log_metric), strict=True))
    given = function(**arguments, **{name: offered[name] for name in provided})
    values = run(_awaited(given)) if inspect.isawaitable(given) else given
    if hasattr(values, "tolist"):  # an array or a tensor; of times tolist makes plain numbers
        values = list(values) if _is_time(values) else values.tolist()
    count = len(completions)
    if not isinstance(values, list | tuple) or len(values) != count:
        got = f"{len(values)}" if isinstance(values, list | tuple) else type(values).__name__
        raise WrongCountError(f"expected a list of {count} values, one per completion, got {got}")
    if per_step:
        checked = [_steps(value, text) for value, text in zip(values, completions, strict=True)]
    else:
        checked = [_number(value) for value in values]
    return Called(checked, log.extra, log.metrics)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def run_in_thread(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in a new thread, because a notebook's thread already runs an event loop."""
    with started_in_thread(main, name="reward-coroutine") as result:
        return result.result()


@contextmanager
def started_in_thread(main: Coroutine[Any, Any, _T], *, name: str) -> Iterator[Future[_T]]:
    """Starts a coroutine in a new thread; at the end of the block it is cancelled when it still runs."""
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def started() -> _T:
        running.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await main

    with ThreadPoolExecutor(1, thread_name_prefix=name) as threads:
        result = threads.submit(asyncio.run, started())
        try:
            yield result
        finally:
            if not result.done():  # Ctrl-C: cancel the requests instead of waiting for replies
                loop, task = running.result()
                with suppress(RuntimeError):  # finished meanwhile
                    loop.call_soon_threadsafe(task.cancel if task else loop.stop)


def _number(value: object) -> Value:
    if value is None or isinstance(value, Invalid):
        return value
    try:
        # float() alone would read a text of NumPy, and drop the imaginary part of its complex numbers.
        plain = value.item() if hasattr(value, "item") else value
        if not isinstance(plain, Real) or _is_time(value):
            return Invalid(f"gave {value!r:.60} ({type(value).__name__}), expected a number or None")
        number = float(plain)
    except (TypeError, ValueError, RuntimeError):  # an array of several numbers
        return Invalid(f"gave {value!r:.60} ({type(value).__name__}), expected a number or None")
    except OverflowError:
        return Invalid(f"gave a number beyond {LARGEST:g}")
    if not math.isfinite(number):
        return Invalid(f"gave {number}")
    return number if abs(number) <= LARGEST else Invalid(f"gave {number}, expected at most {LARGEST:g} in size")


def _is_time(value: object) -> bool:
    """Whether a value or an array is a time or a duration of NumPy, which counts as a whole number there."""
    return getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")


def _steps(steps: object, completion: str | Sequence[Mapping[str, Any]]) -> Value:
    """Checks pairs of (end, value): `end` is the number of characters up to the end of the step."""
    if isinstance(steps, Invalid):
        return steps
    length = len(completion if isinstance(completion, str) else str(completion[-1]["content"]))
    pairs = () if steps is None else steps
    ok = isinstance(pairs, list | tuple) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], int)
        and not isinstance(pair[0], bool)
        and isinstance(pair[1], Real)
        and not _is_time(pair[1])
        and 1 <= pair[0] <= length
        for pair in pairs
    )
    if not ok:
        return Invalid(f"gave {steps!r:.60}, expected steps (end, value) with an end of 1 to {length} characters")
    checked = [(end, _number(value)) for end, value in pairs]  # type: ignore[attr-defined]
    bad = [value for _, value in checked if isinstance(value, Invalid)]
    if bad:
        return Invalid(bad[0].reason.replace("gave", "gave a step", 1))
    return tuple((end, value) for end, value in checked if isinstance(value, float))


def describe(error: BaseException) -> str:
    """Describes an error in one line: type, message, file and line."""
    called = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    theirs = [(path, line) for path, line in called if path.parent != _HERE and not path.name.startswith("<frozen")]
    place = f" ({theirs[-1][0].name}:{theirs[-1][1]})" if theirs else ""
    try:
        said = str(error)
    except BaseException:  # noqa: BLE001  a user's exception whose text cannot be made
        said = "no message"
    return f"{type(error).__name__}: {readable(said)}{place}"


def readable(text: str) -> str:
    """Shortens a text to 300 characters and replaces unprintable ones, such as terminal escapes."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:300])


def work(
    channel: socket.socket, functions: Mapping[str, Callable[..., Any]], memory_mib: int, cpu_seconds: int
) -> None:
    """Runs a worker: it receives jobs as parcels and returns values as JSON, which is safe to read."""
    printed = Printed()
    held = _data_mib()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, (held + memory_mib) * _MIB)
    provided = {name: signature(function).provided for name, function in functions.items()}
    own = os.getpid()
    runner = asyncio.Runner()  # one event loop for all calls, so that connections opened in it stay usable
    while True:
        try:
            message = receive_frame(channel)
        except (EOFError, OSError):
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + cpu_seconds)
        printed.begin_call()
        reply = _answer(message, functions, provided, runner.run)
        del message
        if os.getpid() != own:  # a function that forked returns in both processes
            os._exit(0)
        printed.end_call()
        send_frame(channel, _dumps(reply | {"grown": _data_mib() - held}).encode())


def _answer(
    message: bytes,
    functions: Mapping[str, Callable[..., Any]],
    provided: Mapping[str, Sequence[str]],
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> dict[str, Any]:
    try:
        name, per_step, state, arguments, completions = unpack(message)
        function, names = functions[name], provided[name]
        found = call(function, arguments, completions, provided=names, state=state, per_step=per_step, run=run)
        values = [{"invalid": str(v.reason)} if isinstance(v, Invalid) else v for v in found.values]
        return {"values": values, "extra": found.extra, "metrics": found.metrics}
    except WrongCountError as error:
        return {"error": f"gave a wrong result: {error}", "of_call": True}
    except BaseException as error:  # noqa: BLE001  user code: report any exception, never turn it into a reward
        return {"error": f"raised {describe(error)}", "memory": isinstance(error, MemoryError)}


def decode(reply: Mapping[str, Any], count: int) -> Called:
    """Decodes the reply about `count` completions from JSON. Raises ValueError, or the like, for anything else."""
    values, log = reply["values"], RewardLog(count)
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"expected {count} values")
    for column, given in reply["extra"].items():
        log.log_extra(column, given)
    for name, number in reply["metrics"]:
        log.log_metric(name, number)
    return Called([_decoded(value) for value in values], log.extra, log.metrics)


def gather(scored: PendingValues) -> Called:
    """Waits for a call and returns what it gave, in the order of its completions."""
    found = scored.result()
    if isinstance(found, Called):
        return found
    alone = [gather(item) for item in found]
    columns = dict.fromkeys(name for one in alone for name in one.extra)
    return Called(
        [one.values[0] for one in alone],
        {name: [one.extra.get(name, [None])[0] for one in alone] for name in columns},
        [pair for one in alone for pair in one.metrics],
    )


def is_known(scored: PendingValues) -> bool:
    """Whether `gather` would return values at once."""
    if not scored.done() or scored.exception() is not None:
        return False
    found = scored.result()
    return isinstance(found, Called) or all(map(is_known, found))


def _decoded(value: object) -> Value:
    match value:
        case None:
            return None
        case {"invalid": str(reason)}:
            return Invalid(readable(reason))
        case float() | int() if abs(value) <= LARGEST:
            return float(value)
        case list():
            return tuple((int(end), float(earned)) for end, earned in value)
    raise ValueError(f"expected a value, got {value!r:.60}")


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _data_mib() -> int:
    """Private memory of this process in MiB, as RLIMIT_DATA counts it; 0 on systems other than Linux."""
    if sys.platform != "linux":
        return 0
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize() // _MIB
