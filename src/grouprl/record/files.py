"""Writes files atomically and makes strict JSON."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def atomic_write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file atomically: after a crash the old or the new file is there, complete."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields the path of a file to write, which becomes `path` when the block ends without an error."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def append_line(path: Path, text: str) -> None:
    """Appends a line to a UTF-8 file; on return it is on the disk."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8") as lines:
        lines.write(text + "\n")
        lines.flush()
        os.fsync(lines.fileno())
    if is_new:
        _sync(path.parent)


def make_directory(path: Path) -> None:
    """Makes a folder and the missing ones above it; on return their names are on the disk."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        _sync(folder.parent)


def remove_directory(path: Path) -> None:
    """Removes a folder. After a kill it is there as a whole, or has another name (`.old`)."""
    removed = path.with_name(path.name + ".old")
    shutil.rmtree(removed, ignore_errors=True)
    path.rename(removed)
    _sync(path.parent)
    shutil.rmtree(removed)
    _sync(path.parent)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yields an empty folder, which becomes `path` when the block ends without an error.

    An existing `path` stays unchanged until its replacement is complete.
    """
    temporary, replaced = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".old")
    shutil.rmtree(temporary, ignore_errors=True)
    make_directory(temporary)
    try:
        yield temporary
        for entry in (*sorted(temporary.rglob("*"), key=Path.is_dir), temporary):  # files, then their folders
            _sync(entry)
        shutil.rmtree(replaced, ignore_errors=True)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
        _sync(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_text(value: Any, indent: int | None = None, default: Callable[[Any], str] | None = None) -> str:
    """Makes strict JSON. NaN and infinity become null, because neither jq nor sqlite3 reads them.

    Args:
        value: the value to write; a set becomes a sorted list.
        indent: spaces per level; None = one line.
        default: makes a text of a value that JSON does not have.

    Raises:
        TypeError: without `default`, for a value that JSON does not have, such as a tensor.
    """
    return utf8_text(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent, default=default))


def utf8_text(text: str) -> str:
    """Replaces each lone surrogate, which neither UTF-8 nor SQLite can store, by U+FFFD.

    >>> utf8_text("7\\udc80!") == "7\\ufffd!"
    True
    """
    return re.sub(r"[\ud800-\udfff]", "\ufffd", text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, Set):
        return [_finite(item) for item in sorted(value, key=_place)]
    return value


def _place(item: object) -> tuple[bool, float, str]:
    # Numbers by size, then other values by their text: a set may mix types that Python does not compare.
    return (False, item, "") if isinstance(item, int | float) else (True, 0, str(item))
