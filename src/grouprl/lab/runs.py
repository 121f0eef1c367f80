"""The runs below a root: where they are, how they are doing, and their figures step by step."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grouprl.config.yaml_text import read_yaml
from grouprl.lab.remembered import GrowingRows, Remembered, Row
from grouprl.record.files import utf8_text
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_json, read_json_lines, read_summary
from grouprl.record.strict import is_number, read_file, refuse_depth
from grouprl.types import UserError

SPARK_POINTS = 60
_SPARKS = ("reward", "accuracy", "completions/mean_length")
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
        self._remembered = Remembered()
        self._lock = threading.Lock()

    def folders(self) -> Iterator[Path]:
        """Every run directory, the one that changed last first; none whose id would lead elsewhere (a~b, a\\b)."""
        found = [path for path in _below(self.root, _DEPTH) if self._named(self.identifier(path)) == path]
        return iter(sorted(found, key=_changed, reverse=True))

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
        """Whether this is a run directory, and neither it nor anything in it leads out of the root."""
        try:
            entries = [path, *path.iterdir()] if path.is_dir() else []
            inside = all(entry.resolve().is_relative_to(self.root) for entry in entries)
            return bool(entries) and inside and RunDirectory(path).exists
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

    def overview(self, folder: Path) -> dict[str, Any]:
        """A line of the list of runs; of a damaged one what is wrong with it."""
        known = {"id": self.identifier(folder), "name": folder.name, "modified": _changed(folder)}
        try:
            config, summary, rows = self.config(folder), self.summary(folder), self.metrics(folder)
            before = next(iter(self.evaluations(folder)), {})
            forked = self._forked(folder)
        except UserError as error:
            return {**known, "status": "broken", "error": str(error)}
        last: Row = rows[-1] if rows else {}
        return {
            **known,
            "status": RunDirectory(folder).status(summary, config.get("steps")),
            "forked": forked,
            "step": last.get("step", 0),
            "steps": config.get("steps"),
            "algorithm": _part(config, "algorithm", "name"),
            "model": _part(config, "model", "path"),
            "task": _part(config, "task", "name"),
            "seed": _plain(config.get("seed")),
            "reward": last.get("reward"),
            "accuracy": last.get("accuracy"),
            "greedy_before": _number(before, "greedy_accuracy"),
            "greedy_after": _number(summary.get("after") or {}, "greedy_accuracy"),
            "tokens_per_second": last.get("tokens_per_second"),
            "seconds": _number({"train_seconds": last.get("seconds"), **summary}, "train_seconds"),
            "sparks": {name: thinned([row.get(name) for row in rows], SPARK_POINTS) for name in _SPARKS},
        }

    def _forked(self, folder: Path) -> dict[str, Any] | None:
        """Where a forked run comes from: the name of the other and the step."""
        with self._lock:
            found = self._remembered.read(RunDirectory(folder).forked, read_json)
        known = isinstance(found.get("from"), str) and isinstance(found.get("step"), int)
        return {"from": found["from"], "step": found["step"]} if known else None


def read_config(folder: Path) -> dict[str, Any]:
    """The run's config.yaml.

    Raises:
        UserError: it is no mapping in the YAML of `config_yaml`, or `steps` is no number.
    """
    path = RunDirectory(folder).config
    text = read_file(path)
    if text is None:
        raise UserError(f"{path}: expected the settings of the run, found no such file: restore it")
    return parse_config(text.decode("utf-8", "replace"), path)


def parse_config(text: str, place: object) -> dict[str, Any]:
    """The settings in the text of a config.yaml; `place` is what an error begins with.

    Raises:
        UserError: as `read_config`.
    """
    try:
        found = read_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{place}: expected YAML ({type(error).__name__}: {error}): restore the file") from None
    if not isinstance(found, dict):
        raise UserError(f"{place}: expected settings, got {str(found)[:60]!r}: restore the file")
    refuse_depth(found, place)
    steps = found.get("steps")
    if steps is not None and type(steps) is not int:
        raise UserError(f"{place}: steps: expected a whole number, got {steps!r:.60}: restore the file")
    return found


def thinned(values: Sequence[float | None], points: int) -> list[float | None]:
    """At most this many of the values, evenly spaced, the last among them."""
    if len(values) <= points:
        return list(values)
    last = len(values) - 1
    return [values[round(place * last / (points - 1))] for place in range(points)]


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


def _changed(folder: Path) -> float:
    times, run = [], RunDirectory(folder)
    for path in (run.metrics, run.summary, run.config):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def _part(config: Mapping[str, Any], section: str, name: str) -> str | float | None:
    found = config.get(section)
    return _plain(found.get(name) if isinstance(found, dict) else found)


def _plain(value: Any) -> str | float | None:
    return value if isinstance(value, str | int | float) else None


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return value if is_number(value) else None
