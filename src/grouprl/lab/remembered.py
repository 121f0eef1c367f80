"""Reads the files of a run again when they have changed, and not before: a page asks for them every second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from grouprl.files import opened
from grouprl.lab.report.run_data import Row, totalled
from grouprl.record.layout import RunDirectory
from grouprl.record.read import rows_of
from grouprl.types import UserError

Found = TypeVar("Found")
State = tuple[int, ...]
_TAIL = 256  # bytes before the place that was read to: the name and the number of a file may come to another one


def file_state(path: Path) -> State | None:
    """What changes when a file does; None when it is not there, or nothing can be known of it."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class _Broken:
    sentence: str

    def fail(self) -> NoReturn:
        # A new one each time: one that is raised again and again holds on to every frame it went through.
        raise UserError(self.sentence)


class ReaderMemory:
    """What readers made of files, the mistakes in them too, once for each state of a file."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[State | None, Any]] = {}

    def read(self, path: Path, reader: Callable[[Path], Found]) -> Found:
        """What the reader makes of the file now.

        Raises:
            UserError: as the reader.
        """
        state, known = file_state(path), self._known.get(path)
        if known is None or known[0] != state:
            try:
                known = state, reader(path)
            except UserError as error:
                known = state, _Broken(str(error))
            self._known[path] = known
        found: Any = known[1]
        if isinstance(found, _Broken):
            found.fail()
        return found  # type: ignore[no-any-return]


@dataclass
class GrowingRows:
    """The rows of a metrics.jsonl: what was read stays, and only what came since is read."""

    path: Path
    rows: list[Row] = field(default_factory=list)  # numbers and None, with the tokens and seconds up to each
    generation: int = field(default_factory=time.time_ns)  # grows when rows that were read are no longer there
    _state: tuple[State | None, State | None] | None = None
    _offset: int = 0
    _tail: bytes = b""
    _broken: _Broken | None = None

    def refresh(self) -> None:
        """Reads what came since.

        Raises:
            UserError: a line is no row, or the file cannot be read.
        """
        # A run that is made anew under the name of another begins with its config.yaml.
        state = file_state(self.path), file_state(RunDirectory(self.path.parent).config)
        if state != self._state:
            self._broken = None
            try:
                self._read(anew=self._state is not None and state[1] != self._state[1])
            except UserError as error:
                self._broken = _Broken(str(error))
            self._state = state
        if self._broken:
            self._broken.fail()

    def _read(self, *, anew: bool) -> None:
        with opened(self.path) as file:
            if file is not None:
                file.seek(self._offset - len(self._tail))
                anew = anew or file.read(len(self._tail)) != self._tail
            if anew or file is None:
                self._forget()
            if file is None:
                return
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        fresh = rows_of(BytesIO(whole + end), self.path, first=len(self.rows) + 1)
        self.rows.extend(totalled(self.rows, list(fresh)))
        self._offset += len(whole) + len(end)
        self._tail = (self._tail + whole + end)[-_TAIL:]

    def _forget(self) -> None:
        self.generation += bool(self.rows)
        self.rows, self._offset, self._tail = [], 0, b""
