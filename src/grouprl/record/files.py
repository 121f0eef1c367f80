"""Writes files atomically and makes strict JSON."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from grouprl.types import UserError


def atomic_write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file atomically: after a crash the old or the new file is there, complete."""
    with atomic_file(path) as file:
        file.write(text.encode())


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Yields a new file to write, which becomes `path` when the block ends without an error.

    No link is followed: a folder can come from somebody else, and a link in it can point to any file of this user.
    """
    name = f"{path.name}.tmp"
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # what a kill left, or a link; a folder stays, and another name is taken
            os.unlink(name, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(name, flags, 0o666, dir_fd=folder)
        except FileExistsError:
            name = f"{path.name}.{secrets.token_hex(4)}.tmp"
            handle = os.open(name, flags, 0o666, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(handle)
            os.replace(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    except OSError as error:
        if error.filename == name:  # the error names the file that the user knows
            error.filename = str(path)
        raise
    finally:
        os.close(folder)


def open_to_write(path: Path, flags: int) -> int:
    """Opens a file of a run to lock it or to append to it, and makes it where there is none.

    Raises:
        UserError: it is a link, which can point to any file of this user, or no file.
    """
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        # A pipe that nobody reads, for example, cannot be opened.
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise UserError(f"{path}: expected a file to write, got a link, a folder or a pipe: remove it") from None
        raise
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise UserError(f"{path}: expected a file to write, got a device: remove it")


def append_line(path: Path, text: str) -> None:
    """Appends a line to a UTF-8 file; on return it is on the disk."""
    is_new = not path.exists()
    with os.fdopen(open_to_write(path, os.O_WRONLY | os.O_APPEND), "ab") as lines:
        lines.write(f"{text}\n".encode())
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
    remove(removed)
    path.rename(removed)
    _sync(path.parent)
    remove(removed)
    _sync(path.parent)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yields an empty folder, which becomes `path` when the block ends without an error.

    An existing `path` stays unchanged until its replacement is complete.
    """
    temporary, replaced = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".old")
    remove(temporary)
    make_directory(path.parent)
    temporary.mkdir()
    try:
        yield temporary
        for entry in (*sorted(temporary.rglob("*"), key=Path.is_dir), temporary):  # files, then their folders
            _sync(entry)
        if replaces := os.path.lexists(path):  # else a folder of that name is somebody's
            remove(replaced)
            path.rename(replaced)
        temporary.rename(path)
        _sync(path.parent)
        if replaces:
            remove(replaced)
    finally:
        remove(temporary)


def remove(path: Path) -> None:
    """Removes a folder, a file, or a link without what it points to; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
