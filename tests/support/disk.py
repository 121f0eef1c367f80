"""A disk that stops: kills a run before its n-th change to a file, or shows what a loss of power would leave.

`disk.c` sees the changes. The model of the disk is POSIX's: the bytes of a file last after an fsync of the file, its
name after an fsync of its folder.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_HEAD = struct.Struct("<cIIQq")
SOURCE = Path(__file__).parent / "disk.c"


def compiled(folder: Path) -> Path:
    """The library; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = folder / "disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Change:
    """One change: (c)reate, (t)runcate to nothing, (w)rite, (s)ize, (f)sync, (r)ename, (u)nlink, (m)ake a folder."""

    kind: str
    path: str
    target: str
    offset: int
    data: bytes


def read_log(path: Path) -> Iterator[Change]:
    text, at = path.read_bytes(), 0
    while at < len(text):
        kind, first, second, length, offset = _HEAD.unpack_from(text, at)
        at += _HEAD.size
        names = text[at : at + first].decode(), text[at + first : at + first + second].decode()
        at += first + second
        size = length if kind in b"wf" else 0
        yield Change(kind.decode(), *names, offset, text[at : at + size])
        at += size


@dataclass
class File:
    now: bytearray = field(default_factory=bytearray)
    lasting: bytes = b""


@dataclass
class Folder:
    now: dict[str, File | Folder] = field(default_factory=dict)
    lasting: dict[str, File | Folder] = field(default_factory=dict)


class Disk:
    """The tree below a root, as programs see it and as it lasts."""

    def __init__(self, root: Path) -> None:
        self.root, self.top = str(root), Folder()

    def _parent(self, path: str) -> tuple[Folder, str]:
        *above, name = path.removeprefix(self.root).strip("/").split("/")
        folder = self.top
        for part in above:
            inner = folder.now[part]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    def make(self, change: Change) -> None:
        if change.path == self.root:  # the root itself is there, and stays
            if change.kind == "f":
                self.top.lasting = dict(self.top.now)
            return
        parent, name = self._parent(change.path)
        match change.kind:
            case "c":
                parent.now[name] = File()
            case "m":
                parent.now[name] = Folder()
            case "u":
                del parent.now[name]
            case "r":
                target, other = self._parent(change.target)
                target.now[other] = parent.now.pop(name)
            case "f":
                found = parent.now.get(name) or self._renamed_unseen(parent, name, change.data)
                if isinstance(found, File):
                    found.now, found.lasting = bytearray(change.data), change.data
                else:
                    found.lasting = dict(found.now)
            case _:
                found = parent.now.get(name)
                if isinstance(found, File):  # otherwise it was unlinked while open
                    _write(found.now, change)

    def _renamed_unseen(self, parent: Folder, name: str, data: bytes) -> File:
        """The file of a library that calls the kernel itself: safetensors renames .tmpXXXXXX so."""
        before = [old for old, file in parent.now.items() if isinstance(file, File) and file.now == data]
        parent.now[name] = file = File()
        for old in before:
            if old.startswith(".tmp"):
                del parent.now[old]
        return file

    def files(self) -> dict[str, bytes]:
        """Every file as programs see it, by its path below the root; without the lock, which names a process."""
        return {name: bytes(file.now) for name, file in _files(self.top, "") if not name.endswith("run.lock")}

    def lose_power(self, folder: Path, *, names_last: bool) -> None:
        """Writes what lasts into a folder; with `names_last` the names of all files, with the bytes that last."""
        _restore(self.top, folder, names_last)


def _files(tree: Folder, above: str) -> Iterator[tuple[str, File]]:
    for name, found in tree.now.items():
        if isinstance(found, Folder):
            yield from _files(found, f"{above}{name}/")
        else:
            yield f"{above}{name}", found


def _write(content: bytearray, change: Change) -> None:
    size = {"t": 0, "s": change.offset}.get(change.kind)
    if size is None:
        content.extend(bytes(max(0, change.offset - len(content))))
        content[change.offset : change.offset + len(change.data)] = change.data
    else:
        del content[size:]
        content.extend(bytes(size - len(content)))


def _restore(tree: Folder, place: Path, names_last: bool) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, found in (tree.now if names_last else tree.lasting).items():
        if isinstance(found, Folder):
            _restore(found, place / name, names_last)
        elif not name.endswith("-shm"):  # shared memory, which nobody writes to the disk
            (place / name).write_bytes(found.lasting)
