"""The limits that go into a sandbox, the results that come out of it, and the reader of its reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from grouprl.types import UserError


class SandboxError(RuntimeError):
    """The sandbox itself failed before it ran a line of the program, which says nothing about the program."""


@dataclass(frozen=True)
class Limits:
    """The resources that one program may use. Raises UserError for a limit that is not above 0."""

    seconds: float = 4.0  # wall clock, including the start
    cpu_seconds: int = 2  # all threads together
    memory_mib: int = 512  # address space, including the interpreter's own
    output_kib: int = 64  # printed text, and separately return values
    files_mib: int = 16  # files in the temporary folder
    threads: int = 16  # in addition to the first; a program cannot start processes

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if not (is_integer or (field.name == "seconds" and isinstance(value, float))) or not value > 0:
                raise UserError(
                    f"sandbox limits: expected {field.name} to be a number above 0"
                    f"{'' if field.name == 'seconds' else ' without a fraction'}, got {value!r}: change it"
                )


@dataclass(frozen=True)
class ReturnValue:
    """The return value of a call: plain data of a builtin type."""

    value: Any


@dataclass(frozen=True)
class CallFailure:
    """The reason why a call has no return value: it raised, it was not reached, or it returned no plain data."""

    reason: str


@dataclass(frozen=True)
class SandboxResult:
    """The result of a program. All of it is a claim of the program itself, and none of it is code."""

    outcomes: tuple[ReturnValue | CallFailure, ...]  # one for each call, in order
    error: str  # why the program did not reach its end; "" = it did
    output: str  # printed text, cut at the limit
    seconds: float  # wall clock


READY, PREPARED, STARTED = b"ready", b"prepared", b"started"
"""Reports of the guest, in this order: it is confined, the set-up has run, the program has run."""


def outcome(line: bytes) -> ReturnValue | CallFailure:
    """Reads the guest's report of a call. A malformed report is a failed call, never an error.

    >>> outcome(b'["list",[["i","0x7"],true]]')
    ReturnValue(value=[7, True])
    """
    try:
        data = json.loads(line)
        if isinstance(data, list) and data[:1] == ["error"]:
            return CallFailure(_text(data[1])[:300])
        return ReturnValue(_value(data))
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        return CallFailure(f"returned something that is not plain data ({type(error).__name__})")


def _value(data: Any) -> Any:
    if data is None or isinstance(data, bool):
        return data
    kind, content = data
    return _READERS[kind](content)


def _text(content: str) -> str:
    return bytes.fromhex(content).decode("utf-8", "surrogatepass")


def _items(content: list[Any]) -> list[Any]:
    return [_value(item) for item in content]


_READERS: dict[str, Callable[[Any], Any]] = {
    "i": lambda content: int(content, 16),
    "f": float.fromhex,
    "c": lambda content: complex(*map(float.fromhex, content)),
    "s": _text,
    "b": bytes.fromhex,
    "list": _items,
    "tuple": lambda content: tuple(_items(content)),
    "set": lambda content: set(_items(content)),
    "frozenset": lambda content: frozenset(_items(content)),
    "dict": lambda content: {_value(key): _value(value) for key, value in content},
}
