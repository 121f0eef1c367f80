"""Calls a reward function inside a worker process, under its limits, and checks what it gives."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from numbers import Real
from pathlib import Path
from typing import Any

from grouprl.rewards.invalid import Invalid
from grouprl.rewards.parcels import unpack

OWN_KEYWORDS = ("prompts", "completions", "completion_ids")
_MIB = 1 << 20

Value = float | None | Invalid | tuple[tuple[int, float], ...]
"""What a function says of one completion; pairs of (end, value) from a process reward."""


class WrongCountError(ValueError):
    """A function did not give one value per completion."""


@dataclass(frozen=True)
class Signature:
    """What a reward function is called with."""

    required: tuple[str, ...]  # columns without which it cannot be called
    accepted: tuple[str, ...] | None  # None = everything there is

    def arguments(self, keywords: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """The keywords it takes; a column that this problem lacks is None, as TRL's data sets have it."""
        count = len(keywords["completions"])
        missing = {name: [None] * count for name in self.required if name not in keywords}
        return {name: v for name, v in keywords.items() if self.accepted is None or name in self.accepted} | missing


def signature(function: Callable[..., Any]) -> Signature:
    """Read off the function. Raises TypeError for one that cannot be called with keywords."""
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise TypeError(f"expected parameters that can be given by name, got {parameter.name!r} by position only")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = tuple(p.name for p in named if p.default is p.empty and p.name not in OWN_KEYWORDS)
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return Signature(required, None if everything else tuple(p.name for p in named))


def call(
    function: Callable[..., Any],
    arguments: Mapping[str, Sequence[Any]],
    completions: Sequence[Any],
    *,
    per_step: bool = False,
) -> list[Value]:
    """One value for each completion; what is no number becomes `Invalid`. Raises what the function raises, and
    WrongCountError when it does not give a list of as many values as there are completions."""
    given = function(**arguments)
    values = asyncio.run(_awaited(given)) if inspect.isawaitable(given) else given
    values = values.tolist() if hasattr(values, "tolist") else values  # an array or a tensor
    count = len(completions)
    if not isinstance(values, list | tuple) or len(values) != count:
        got = f"{len(values)}" if isinstance(values, list | tuple) else type(values).__name__
        raise WrongCountError(f"expected a list of {count} values, one per completion, got {got}")
    if per_step:
        return [_steps(value, text) for value, text in zip(values, completions, strict=True)]
    return [_number(value) for value in values]


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _number(value: object) -> Value:
    if value is None or isinstance(value, Invalid):
        return value
    if not isinstance(value, Real) and not hasattr(value, "item"):
        return Invalid(f"gave {value!r:.60} ({type(value).__name__}), expected a number or None")
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else Invalid(f"gave {number}")


def _steps(steps: object, completion: str | Sequence[Mapping[str, Any]]) -> Value:
    """Pairs of a step's end, in characters of the text up to and including it, and its value."""
    if isinstance(steps, Invalid):
        return steps
    length = len(completion if isinstance(completion, str) else str(completion[-1]["content"]))
    pairs = () if steps is None else steps
    ok = isinstance(pairs, list | tuple) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], int)
        and isinstance(pair[1], Real)
        and 1 <= pair[0] <= length
        for pair in pairs
    )
    if not ok:
        return Invalid(f"gave {steps!r:.60}, expected steps (end, value) with an end of 1 to {length} characters")
    checked = tuple((end, float(value)) for end, value in pairs)  # type: ignore[attr-defined]
    bad = [value for _, value in checked if not math.isfinite(value)]
    return Invalid(f"gave a step {bad[0]}") if bad else checked


def work(
    channel: Connection,
    functions: Mapping[str, Callable[..., Any]],
    memory_mib: int,
    cpu_seconds: int,
    describe: Callable[[BaseException], str],
) -> None:
    """The life of a worker: a job comes as a pickle, its values go back as JSON, which cannot do anything."""
    held = _data_mib()
    _limit(resource.RLIMIT_DATA, (held + memory_mib) * _MIB)
    while True:
        try:
            name, per_step, arguments, completions = unpack(channel.recv_bytes())
        except (EOFError, OSError):
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + cpu_seconds)
        try:
            values = call(functions[name], arguments, completions, per_step=per_step)
            reply: dict[str, Any] = {"values": list(map(encode, values))}
        except WrongCountError as error:
            reply = {"error": f"gave a wrong result: {error}"}
        except BaseException as error:  # noqa: BLE001  a stranger's code: whatever it raises is told, never a reward
            reply = {"error": f"raised {describe(error)}", "memory": isinstance(error, MemoryError)}
        reply["grown"] = _data_mib() - held
        channel.send_bytes(json.dumps(reply).encode())


def encode(value: Value) -> Any:
    """As plain JSON."""
    return {"invalid": value.reason} if isinstance(value, Invalid) else value


def decode(value: Any) -> Value:
    """Back from JSON."""
    if isinstance(value, dict):
        return Invalid(str(value["invalid"]))
    return tuple((int(end), float(earned)) for end, earned in value) if isinstance(value, list) else value


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _data_mib() -> int:
    """Private memory of this process, which is what RLIMIT_DATA counts; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize() // _MIB
