"""Checks the rows of rollouts.sqlite against its schema, because SQLite does not enforce column types."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from grouprl.files import is_number, parse, parse_object
from grouprl.types import StopReason, UserError

_TOKENS = ("token_ids", "logprobs", "plain_logprobs")
_TRACES = (
    "token_advantages",
    "learner_logprobs",
    "entropies",
    "reference_logprobs",
    "updated_logprobs",
    "old_logprobs",
)
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("problem_id", "text", "components", "stop_reason", "prompt", "columns", "stage", "value"), (str,)),
    **dict.fromkeys(("invalid_reason", "step_rewards", "messages", "extra", "episode"), (str, type(None))),
    **dict.fromkeys(("step", "group_index", "completion_index", "length", "weights_version"), (int,)),
    "correct": (int, type(None)),
    "kept": (int,),
    **dict.fromkeys(("reward", "earned"), (float, type(None))),
    "advantage": (float,),
    **dict.fromkeys(("prompt_ids", *_TOKENS), (bytes,)),
    **dict.fromkeys(_TRACES, (bytes, type(None))),
}
_REASONS = frozenset(reason.value for reason in StopReason)


def checked_rows(path: Path) -> Callable[[sqlite3.Cursor, tuple[Any, ...]], sqlite3.Row]:
    """Makes a row factory of the database at `path`: `sqlite3.Row`, or a UserError that names the damaged column.

    It identifies columns by their names in the query. Columns with numbers per token must match the length.
    """

    def row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> sqlite3.Row:
        kinds, tokens, scored = _expected(tuple(name for name, *_ in cursor.description))
        for (name, kind), value in zip(kinds, values, strict=True):
            if kind and type(value) not in kind:
                raise _wrong(path, name, " or ".join(allowed.__name__ for allowed in kind), value)
            if name == "stop_reason" and value not in _REASONS:
                raise _wrong(path, name, " or ".join(sorted(_REASONS)), value)
            if name == "prompt_ids" and len(value) % 4:
                raise _wrong(path, name, "4 bytes for each token", f"{len(value)} bytes")
        checked = sqlite3.Row(cursor, values)
        if scored and (checked["reward"] is None) != (checked["earned"] is None):
            raise _wrong(path, "earned", "a number exactly where `reward` has one", checked["earned"])
        for name in tokens:
            if checked[name] is not None and len(checked[name]) != 4 * checked["length"]:
                expected = f"4 bytes for each of {checked['length']} tokens"
                raise _wrong(path, name, expected, f"{len(checked[name])} bytes")
        return checked

    return row


@lru_cache(maxsize=64)
def _expected(names: tuple[str, ...]) -> tuple[list[tuple[str, tuple[type, ...] | None]], list[str], bool]:
    """The columns of a query with their types, those with numbers per token, and whether both rewards are there.

    The tokens only where the length is known.
    """
    tokens = [name for name in (*_TOKENS, *_TRACES) if name in names] if "length" in names else []
    return [(name, _KINDS.get(name)) for name in names], tokens, {"reward", "earned"} <= set(names)


def parsed(path: Path, row: sqlite3.Row, name: str) -> Any:
    """Parses the JSON in a column of a row; None for NULL.

    Raises:
        UserError: the column holds something else than the schema says.
    """
    if row[name] is None:
        return None
    where = f"{path}: {name}"
    match name:
        case "components":
            contents, expected = parse_object(row[name], where), "numbers by name"
            fits = all(value is None or is_number(value) for value in contents.values())
        case "step_rewards":
            contents, expected = parse(row[name], where), "a list of [last token, reward]"
            fits = isinstance(contents, list) and all(
                isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and is_number(pair[1])
                for pair in contents
            )
        case "messages":
            contents, expected = parse(row[name], where), "a list of messages"
            fits = isinstance(contents, list) and all(
                isinstance(message, dict) and isinstance(message.get("content"), str) for message in contents
            )
        case _:
            return parse_object(row[name], where)
    if not fits:
        raise _wrong(path, name, expected, row[name])
    return contents


def token_advantages(row: sqlite3.Row) -> tuple[float, ...]:
    """The advantage of each token of a row with `advantage`, `length` and `token_advantages`."""
    if row["token_advantages"] is None:
        return (float(row["advantage"]),) * int(row["length"])
    return numbers(row["token_advantages"], "<f4")


def numbers(blob: bytes, dtype: str) -> tuple[Any, ...]:
    """The numbers of a column of bytes: `<i4` for token ids, `<f4` for numbers by token."""
    return tuple(np.frombuffer(blob, dtype).tolist())


def truth(value: int | None) -> bool | None:
    """The value of a column with 1, 0 and NULL."""
    return None if value is None else bool(value)


def _wrong(path: Path, name: str, expected: str, got: object) -> UserError:
    return UserError(f"{path}: {name}: expected {expected}, got {got!r:.60}: restore the file")
