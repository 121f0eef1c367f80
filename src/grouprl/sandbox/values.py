"""What goes into a sandbox and what comes out of it, and how the outside reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from grouprl.types import UserError


class SandboxError(RuntimeError):
    """The sandbox itself failed, before it ran a line of the program: this says nothing about the program."""


@dataclass(frozen=True)
class Limits:
    """What one program may use. Raises UserError for a limit that is not above 0."""

    seconds: float = 4.0  # of the clock, its start included
    cpu_seconds: int = 2  # of all its threads together
    memory_mib: int = 512  # of address space, the interpreter's own included
    output_kib: int = 64  # of what it prints, and again of what it returns
    files_mib: int = 16  # in its temporary folder
    threads: int = 16  # besides the first one; a program may not start processes at all

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (whole or (field.name == "seconds" and isinstance(value, float))) or not value > 0:
                raise UserError(
                    f"sandbox limits: expected {field.name} to be a number above 0"
                    f"{'' if field.name == 'seconds' else ' without a fraction'}, got {value!r}: change it"
                )


@dataclass(frozen=True)
class Returned:
    """What a call gave: a plain value of a builtin type."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """Why a call gave nothing: it raised, it was never reached, or what it gave is not plain data."""

    reason: str


@dataclass(frozen=True)
class SandboxResult:
    """What became of a program. Every word of it is the program's own claim, and nothing in it is code."""

    outcomes: tuple[Returned | Failed, ...]  # one for each call, in order
    error: str  # why the program did not come to its end; "" = it did
    output: str  # what it printed, cut at the limit
    seconds: float  # of the clock


READY, PREPARED, STARTED = b"ready", b"prepared", b"started"
"""What the inside reports in this order: it is confined, the set-up has run, the program has run."""


def outcome(line: bytes) -> Returned | Failed:
    """Reads what the inside reports of a call. Whatever is malformed is a failed call, never an error.

    >>> outcome(b'["list",[["i","0x7"],true]]')
    Returned(value=[7, True])
    """
    try:
        told = json.loads(line)
        if isinstance(told, list) and told[:1] == ["error"]:
            return Failed(_text(told[1])[:300])
        return Returned(_value(told))
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        return Failed(f"returned something that is not plain data ({type(error).__name__})")


def _value(told: Any) -> Any:
    if told is None or isinstance(told, bool):
        return told
    kind, content = told
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
