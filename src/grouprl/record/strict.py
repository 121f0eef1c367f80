"""Reads files and JSON that may be damaged; each error names the place."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeGuard

from grouprl.types import UserError

_REMEDY = "restore it or remove it"
_DEEPEST = 100  # levels of nested lists and objects; writing each level takes a stack frame or two
_LARGEST = sys.float_info.max


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | None]:
    """Opens a regular file for reading; yields None when it does not exist.

    Raises:
        UserError: it is not a regular file (a folder; a pipe, which might never end), or cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise _unread(path, error) from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UserError(f"{path}: expected a file, got a folder or a pipe: {_REMEDY}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise _unread(path, error) from None
    finally:
        os.close(handle)


def read_file(path: Path) -> bytes | None:
    """Reads the bytes of a regular file; None when it does not exist.

    Raises:
        UserError: see `opened`.
    """
    with opened(path) as file:
        return None if file is None else file.read()


def read_text(path: Path) -> str | None:
    """Reads a UTF-8 file; None when it does not exist.

    Raises:
        UserError: it is not UTF-8, or see `opened`.
    """
    found = read_file(path)
    try:
        return None if found is None else found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected a text in UTF-8 ({error}): {_REMEDY}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Reads the object in a JSON file; empty when the file does not exist.

    Raises:
        UserError: the file does not have a JSON object, or cannot be read.
    """
    text = read_text(path)
    return {} if text is None else parse_object(text, path)


def parse_object(text: str | bytes, place: object) -> dict[str, Any]:
    """Parses a JSON object of at most 100 levels; `place` begins the error's text.

    Raises:
        UserError: the text is not such an object.
    """
    found = parse(text, place)
    if not isinstance(found, dict):
        raise UserError(f"{place}: expected a JSON object, got {text[:60]!r}: {_REMEDY}")
    return found


def parse(text: str | bytes, place: object) -> Any:
    """Parses any JSON; otherwise as `parse_object`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: expected JSON, got {text[:60]!r} ({error}): {_REMEDY}") from None
    refuse_depth(found, place)
    return found


def refuse_depth(value: object, place: object) -> None:
    """Raises UserError for lists and mappings that are nested too deeply to be written again."""
    if is_deeper(value, _DEEPEST):
        raise UserError(f"{place}: expected at most {_DEEPEST} levels of lists and objects, got more: {_REMEDY}")


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a finite number in the range of a float; true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def is_deeper(value: object, left: int) -> bool:
    """Whether lists and mappings are nested in more than `left` levels."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left <= 0 or any(is_deeper(item, left - 1) for item in inside if isinstance(item, dict | list))


def _unread(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: expected a file that can be read, got '{error}': {_REMEDY}")
