"""The runs below a root: where they are, how they are doing, and their metrics step by step.

A page asks for a file every second: it is read again when it has changed, and not before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from grouprl.files import opened, read_json
from grouprl.lab.report.recorded import read_config
from grouprl.lab.report.run_data import Row, RunFiles, changed, named, run_line, totalled
from grouprl.record.files import utf8_text
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_json_lines, read_summary, rows_of
from grouprl.types import UserError

Found = TypeVar("Found")
State = tuple[int, ...]
_TAIL = 256  # bytes before the place that was read to: the name and the number of a file may come to another one


def file_state(path: Path) -> State | None:
    """What changes when a file does; None when it is not there, or nothing can be known of it."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
        state, remembered = file_state(path), self._known.get(path)
        if remembered is None or remembered[0] != state:
            try:
                remembered = state, reader(path)
            except UserError as error:
                remembered = state, _Broken(str(error))
            self._known[path] = remembered
        contents: Any = remembered[1]
        if isinstance(contents, _Broken):
            contents.fail()
        return contents  # type: ignore[no-any-return]


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
                self.generation += bool(self.rows)
                self.rows, self._offset, self._tail = [], 0, b""
            if file is None:
                return
            file.seek(self._offset)
            complete_lines, end, _ = file.read().rpartition(b"\n")
        fresh = rows_of(BytesIO(complete_lines + end), self.path, first=len(self.rows) + 1)
        self.rows.extend(totalled(self.rows, list(fresh)))
        self._offset += len(complete_lines) + len(end)
        self._tail = (self._tail + complete_lines + end)[-_TAIL:]


_DEPTH = 2  # a comparison's folder holds those of its runs


class NoSuchRun(UserError):
    """A run that is not there, or lies outside the root."""


@dataclass(frozen=True)
class Fresh:
    """What came of a run's metrics since somebody looked."""

    generation: int  # another than before = the run went back, or is another one, and `rows` are all there are
    count: int  # rows read in all
    step: int  # the last one; 0 before the first
    rows: list[Row]


class Runs:
    """All runs below a root, and what was read of them; may be asked from several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._grown: dict[Path, GrowingRows] = {}
        self._remembered = ReaderMemory()
        self._lock = threading.Lock()

    def folders(self) -> Iterator[Path]:
        """Every run directory, the one that changed last first; none whose id would lead elsewhere (a~b, a\\b)."""
        folders_below = [path for path in _below(self.root, _DEPTH) if self._named(self.identifier(path)) == path]
        return iter(sorted(folders_below, key=changed, reverse=True))

    def folder(self, run: str) -> Path:
        """The directory of a run id (its path below the root with ~ for /).

        Raises:
            NoSuchRun: there is none, or what there is lies elsewhere.
        """
        path = self._named(run)
        if path is None:
            raise NoSuchRun(f"{run}: expected a run below {self.root}, found none")
        return path

    def _named(self, run: str) -> Path | None:
        parts = run.split("~")
        plain = all(part and part not in (".", "..") and not {"/", "\\", "\0"} & set(part) for part in parts)
        # JSON cannot hold a name that is not UTF-8.
        path = self.root.joinpath(*parts) if plain and len(parts) <= _DEPTH and utf8_text(run) == run else None
        return path if path is not None and self._is_run(path) else None

    def _is_run(self, path: Path) -> bool:
        """Whether this is a run directory inside the root, and no link in it leads out of it."""
        try:
            here = _leads_to(path)
            if not here.is_relative_to(self.root) or not RunDirectory(path).exists:
                return False
            return all(_leads_to(entry).is_relative_to(here) for entry in path.iterdir())
        except (OSError, RuntimeError):  # another user's; a link to itself
            return False

    def identifier(self, folder: Path) -> str:
        """What the page calls a run."""
        return "~".join(folder.relative_to(self.root).parts)

    def metrics(self, folder: Path) -> list[Row]:
        """The rows of metrics.jsonl so far: numbers and None, with the tokens and seconds of the run up to each step.

        Raises:
            UserError: the file is damaged.
        """
        return self.fresh(folder, None, 0).rows

    def fresh(self, folder: Path, generation: int | None, count: int) -> Fresh:
        """The rows after the first `count` of a generation; all of them where it is no longer this one.

        Raises:
            UserError: the file is damaged.
        """
        with self._lock:
            grown = self._grown.setdefault(folder, GrowingRows(RunDirectory(folder).metrics))
            grown.refresh()
            rows, same = grown.rows, grown.generation == generation
            step = rows[-1]["step"] if rows else 0
            return Fresh(grown.generation, len(rows), step, rows[count if same else 0 :])

    def config(self, folder: Path) -> dict[str, Any]:
        """As `read_config`, which takes 4 ms."""
        with self._lock:
            return self._remembered.read(RunDirectory(folder).config, lambda _: read_config(folder))

    def summary(self, folder: Path) -> dict[str, Any]:
        """As `read_summary`."""
        with self._lock:
            return self._remembered.read(RunDirectory(folder).summary, lambda _: read_summary(folder))

    def evaluations(self, folder: Path) -> tuple[Row, ...]:
        """The rows of evaluations.jsonl so far.

        Raises:
            UserError: the file is damaged.
        """
        with self._lock:
            return self._remembered.read(RunDirectory(folder).evaluations, read_json_lines)

    def files(self, folder: Path) -> RunFiles:
        """The small files of a run, each read again when it has changed.

        Raises:
            UserError: one of them is damaged.
        """
        config, summary, rows = self.config(folder), self.summary(folder), self.metrics(folder)
        evaluations = self.evaluations(folder)
        with self._lock:
            forked = self._remembered.read(RunDirectory(folder).forked, read_json)
        return RunFiles(config, summary, rows, evaluations, forked)

    def overview(self, folder: Path) -> dict[str, Any]:
        """A line of the list of runs; of a damaged one what is wrong with it."""
        try:
            return run_line(self.identifier(folder), folder, self.files(folder))
        except UserError as error:
            return {**named(self.identifier(folder), folder), "status": "broken", "error": str(error)}


def _leads_to(entry: Path) -> Path:
    """Where a path leads, also one that is not there.

    Raises:
        OSError, RuntimeError: it is a link to itself, which `resolve` passes over from Python 3.13 on.
    """
    with suppress(FileNotFoundError):
        return entry.resolve(strict=True)
    return entry.resolve()


def _below(root: Path, depth: int) -> Iterator[Path]:
    """Folders at most this deep, without those that lead elsewhere."""
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.is_symlink() or not entry.is_dir():
            continue
        yield entry
        if depth > 1 and not RunDirectory(entry).exists:
            yield from _below(entry, depth - 1)
