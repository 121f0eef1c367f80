"""Checks the columns of a data row: a prompt is text or chat messages, an answer is text or a finite number."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from grouprl.tasks.answers import LONGEST_ANSWER, final_answer
from grouprl.types import Message, UserError

Row = tuple[str, Mapping[str, Any]]
"""The place of a row ("train.jsonl:7") and its columns."""

ROLES = ("system", "user", "assistant", "tool")
MOST_DIGITS = 1000  # of a whole number; Python refuses to format very long ones
_MOST_BITS = int(MOST_DIGITS * math.log2(10))


def column(row: Row, name: str, *, remedy: str = "rename or add") -> str:
    """The text in a column of a row. Raises UserError with the remedy when it is missing, and when it is not text."""
    value = _value(row, name, remedy)
    if not isinstance(value, str) or not value.strip():
        raise UserError(
            f"{row[0]}: expected text in column {name!r}, got {short_repr(value)}: write it as a non-empty string"
        )
    _refuse_half_characters(row[0], name, value)
    return value


def text_or_messages(row: Row, name: str, *, remedy: str = "rename or add") -> str | tuple[Message, ...]:
    """The text or the chat messages in a column of a row. Raises UserError when the column holds neither."""
    value = _value(row, name, remedy)
    if isinstance(value, str) or not isinstance(value, Sequence):
        return column(row, name)
    if not value or not all(map(_is_message, value)):
        raise UserError(
            f"{row[0]}: expected text in column {name!r}, got {short_repr(value)}: write text, or messages such as "
            f"[{{'role': 'user', 'content': '2 + 2 = ?'}}], with text and one of the roles {', '.join(ROLES)} in each"
        )
    _refuse_half_characters(row[0], name, "".join(message["content"] for message in value))
    return tuple(map(dict, value))


def check_answer(row: Row, name: str = "answer") -> None:
    """Raises UserError for an answer that no completion could equal.

    An answer is text or a finite number. The final answer, after `####` if there is one, has at most LONGEST_ANSWER
    characters.
    """
    where, value = row[0], row[1][name]
    if not isinstance(value, str) and not _is_finite(value):
        raise UserError(
            f"{where}: expected text or a finite number in column {name!r}, got "
            f"{short_repr(value)}: write it as text such as '7'"
        )
    try:
        text = final_answer(value)
    except UserError as error:
        raise UserError(f"{where}, column {name!r}: {error}") from error
    if not 1 <= len(text) <= LONGEST_ANSWER:
        raise UserError(
            f"{where}: expected an answer of 1 to {LONGEST_ANSWER} characters in column {name!r}, got "
            f"{short_repr(value)}: write the final answer of a correct completion"
        )
    _refuse_half_characters(where, name, text)


def short_repr(value: object) -> str:
    """A value for an error message: at most 80 characters."""
    return _SHORT.repr(value)[:80]


class _Short(reprlib.Repr):
    maxstring = maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= _MOST_BITS else f"a number of more than {MOST_DIGITS} digits"


_SHORT = _Short()


def _value(row: Row, name: str, remedy: str) -> Any:
    where, columns = row
    if name not in columns:
        got = ", ".join(map(str, columns)) or "none"
        raise UserError(f"{where}: expected a column {name!r}, got {got}: {remedy}")
    return columns[name]


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and value.get("role") in ROLES and isinstance(value.get("content"), str)


def _is_finite(value: object) -> bool:
    """Whether a value is a number that can be formatted."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return int(value).bit_length() <= _MOST_BITS if isinstance(value, Integral) else math.isfinite(value)


def _refuse_half_characters(where: str, name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: expected Unicode text in column {name!r}, got half of a surrogate pair "
            f"({text[error.start]!a}): write the whole character, or remove it"
        ) from error
