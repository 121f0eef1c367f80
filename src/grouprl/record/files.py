"""Writing files so that a crash never leaves half of one, and keeping a directory to one process."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grouprl.types import UserError


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


def lock_directory(directory: Path) -> int:
    """Keeps `directory` to this process; gives the file handle whose closing ends that.

    Raises:
        UserError: naming the process that has it.
    """
    # The kernel drops the lock with the process, however it ends; the file itself may stay.
    handle = os.open(directory / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
    if not _locked(handle):
        holder = os.pread(handle, 32, 0).decode() or "unknown"
        os.close(handle)
        raise UserError(
            f"{directory}: run directory in use by process {holder}; wait for it, stop it, or choose another name"
        )
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def _locked(handle: int) -> bool:
    # Who only asks whether a run is going (the lab) has the lock for some microseconds.
    for attempt in range(5):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01 * attempt)
        else:
            return True
    return False


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
