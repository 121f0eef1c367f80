"""Writes files so that a crash never leaves half of one."""

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
    """Writes a UTF-8 file that is either wholly there or not at all, also after a crash."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Gives an empty folder to fill, which becomes `path` when the block ends without an error.

    A `path` that exists is replaced; until its replacement is complete it stays as it was.
    """
    temporary, replaced = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for entry in (*temporary.rglob("*"), temporary):
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
    """Strict JSON that UTF-8 can hold. NaN and infinity, which neither jq nor sqlite3 reads, become null.

    Args:
        value: to be written; a set becomes its sorted list.
        indent: spaces per level; None = one line.
        default: makes a text of what JSON does not know.

    Raises:
        TypeError: without `default`, for anything that JSON does not know, such as a tensor.
    """
    return utf8_text(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent, default=default))


def utf8_text(text: str) -> str:
    """The text with U+FFFD in place of each lone surrogate, which neither a file nor SQLite can hold.

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
    # Numbers by size, then the rest by its text: a set may mix what Python does not compare.
    return (False, item, "") if isinstance(item, int | float) else (True, 0, str(item))
