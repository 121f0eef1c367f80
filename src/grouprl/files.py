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
DATA_KINDS = (".jsonl", ".parquet", ".json", ".csv", ".tsv")
"""The suffixes of data files; a file of text may be compressed too, as in `train.jsonl.gz`."""
# The most bytes that a file may have, by its suffix: it can come from anybody, and what is read of it takes many times
# its size in memory, or minutes. The largest of known models and runs are a third of it at most.
MOST_YAML = 1 << 18
_MOST = {".yaml": MOST_YAML, ".yml": MOST_YAML, ".json": 64 << 20, ".jsonl": 1 << 30, ".jinja": 1 << 20, ".py": 1 << 20}
_MOST_OTHERS = 64 << 20
_DEEPEST = 100  # levels of nested lists and objects; writing each level takes a stack frame or two
_LARGEST = sys.float_info.max


def data_kind(path: str | Path) -> str:
    """The suffix of a data file in small letters, of `rows.CSV.gz` .csv."""
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def refuse_file(path: Path, status: os.stat_result, most: int | None = None) -> None:
    """Checks that a path is of a regular file that is not larger than its kind may be.

    Args:
        path: the path.
        status: what `stat` says of it.
        most: bytes; None = what files with its suffix may have.

    Raises:
        UserError: it is a folder, a pipe, a socket or a device, which might never end; or it is too large.
    """
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: expected a file, got a folder, a pipe or a device: give a file, or remove it")
    most = _MOST.get(path.suffix, _MOST_OTHERS) if most is None else most
    if status.st_size > most:
        raise UserError(f"{path}: expected a file of at most {most} bytes, got one of {status.st_size}: {_REMEDY}")


@contextmanager
def opened(path: Path, most: int | None = None) -> Iterator[IO[bytes] | None]:
    """Opens a regular file for reading; yields None when it does not exist.

    Raises:
        UserError: it is not a regular file of at most `most` bytes, see `refuse_file`; or it cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise _unread(path, error) from None
    try:
        refuse_file(path, os.fstat(handle), most)
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise _unread(path, error) from None
    finally:
        os.close(handle)


def read_file(path: Path, most: int | None = None) -> bytes | None:
    """Reads the bytes of a regular file; None when it does not exist.

    Raises:
        UserError: see `opened`.
    """
    with opened(path, most) as file:
        return None if file is None else file.read()


def read_end(path: Path, most: int) -> bytes:
    """Reads the last bytes of a regular file, at most `most`; nothing when it does not exist.

    Raises:
        UserError: see `opened`.
    """
    with opened(path, most=sys.maxsize) as file:
        if file is None:
            return b""
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_needed(path: Path, what: str, most: int | None = None) -> str:
    """Reads a file of UTF-8 text that must be there; the error begins with `what`.

    Raises:
        UserError: there is no such file, it is not UTF-8, or see `opened`.
    """
    try:
        data = read_file(path, most)
        if data is not None:
            return data.decode("utf-8")
        why = "no such file"
    except UnicodeDecodeError:
        why = "bytes that are not UTF-8"
    raise UserError(f"{what}, got {why} at {path}: check the path")


def read_text(path: Path) -> str | None:
    """Reads a UTF-8 file; None when it does not exist.

    Raises:
        UserError: it is not UTF-8, or see `opened`.
    """
    data = read_file(path)
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected a text in UTF-8 ({error}): {_REMEDY}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Reads the object in a JSON file; empty when the file does not exist.

    Raises:
        UserError: the file does not have a JSON object, or cannot be read.
    """
    text = read_text(path)
    return {} if text is None else parse_object(text, path)


def parse_object(text: str | bytes, where: object) -> dict[str, Any]:
    """Parses a JSON object of at most 100 levels; `where` begins the error's text.

    Raises:
        UserError: the text is not such an object.
    """
    contents = parse(text, where)
    if not isinstance(contents, dict):
        raise UserError(f"{where}: expected a JSON object, got {text[:60]!r}: {_REMEDY}")
    return contents


def parse(text: str | bytes, where: object) -> Any:
    """Parses any JSON; otherwise as `parse_object`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: expected JSON, got {text[:60]!r} ({error}): {_REMEDY}") from None
    refuse_depth(value, where)
    return value


def refuse_depth(value: object, where: object) -> None:
    """Raises UserError for lists and mappings that are nested too deeply to be written again."""
    if is_deeper(value, _DEEPEST):
        raise UserError(f"{where}: expected at most {_DEEPEST} levels of lists and objects, got more: {_REMEDY}")


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a finite number in the range of a float; true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def is_deeper(value: object, left: int) -> bool:
    """Whether lists and mappings are nested in more than `left` levels."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(left):  # level by level: of a tokenizer's half a million merges a call for each took seconds
        values = (inner.values() if isinstance(inner, dict) else inner for inner in level)
        level = [inner for container in values for inner in container if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _unread(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: expected a file that can be read, got '{error}': {_REMEDY}")
