"""The runs below a root: where they are, how they are doing, and their metrics step by step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grouprl.files import read_json
from grouprl.lab.remembered import GrowingRows, ReaderMemory
from grouprl.lab.report.recorded import read_config
from grouprl.lab.report.run_data import Row, RunFiles, changed, named, run_line
from grouprl.record.files import utf8_text
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_json_lines, read_summary
from grouprl.types import UserError

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
        found = [path for path in _below(self.root, _DEPTH) if self._named(self.identifier(path)) == path]
        return iter(sorted(found, key=changed, reverse=True))

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
