"""The runs below a root: where they are, how they are doing, and their figures step by step."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import yaml

from grouprl.lab.read import read_json, read_json_lines
from grouprl.types import UserError

Status = Literal["running", "finished", "stopped", "broken"]
Row = Mapping[str, Any]
SPARK_POINTS = 60
_SPARKS = ("reward", "accuracy", "completions/mean_length")
_DEPTH = 2  # a comparison's folder holds those of its runs


class NoSuchRun(UserError):
    """A run that is not there, or lies outside the root."""


@dataclass
class _Lines:
    """A file of JSON lines that grows: what was read stays, and only what came since is read."""

    identity: tuple[int, int] = (0, 0)
    offset: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


class Runs:
    """All runs below a root, and what was read of them; may be asked from several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._lines: dict[Path, _Lines] = {}
        self._configs: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def folders(self) -> Iterator[Path]:
        """Every run directory, the one that changed last first."""
        found = [path for path in _below(self.root, _DEPTH) if self._is_run(path)]
        return iter(sorted(found, key=_changed, reverse=True))

    def folder(self, run: str) -> Path:
        """The directory of a run id (its path below the root with ~ for /).

        Raises:
            NoSuchRun: there is none, or what there is lies elsewhere.
        """
        parts = run.split("~")
        plain = all(part and part not in (".", "..") and not {"/", "\\", "\0"} & set(part) for part in parts)
        path = self.root.joinpath(*parts) if plain and len(parts) <= _DEPTH else None
        if path is None or not self._is_run(path):
            raise NoSuchRun(f"{run}: expected a run below {self.root}, found none")
        return path

    def _is_run(self, path: Path) -> bool:
        """Whether this is a run directory, and neither it nor anything in it leads out of the root."""
        try:
            entries = [path, *path.iterdir()] if path.is_dir() else []
            inside = all(entry.resolve().is_relative_to(self.root) for entry in entries)
        except (OSError, RuntimeError):  # a link to itself
            return False
        return bool(entries) and inside and (path / "config.yaml").is_file()

    def identifier(self, folder: Path) -> str:
        """What the page calls a run."""
        return "~".join(folder.relative_to(self.root).parts)

    def metrics(self, folder: Path) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far, each with the tokens and seconds of the run up to its step."""
        return self._grown(folder / "metrics.jsonl")

    def overview(self, folder: Path) -> dict[str, Any]:
        """A line of the list of runs; of a damaged one what is wrong with it."""
        known = {"id": self.identifier(folder), "name": folder.name, "modified": _changed(folder)}
        try:
            config, summary, rows = self.config(folder), read_json(folder / "summary.json"), self.metrics(folder)
            before = next((row for row in read_json_lines(folder / "evaluations.jsonl")), {})
        except (UserError, OSError) as error:
            return {**known, "status": "broken", "error": str(error)}
        last: Row = rows[-1] if rows else {}
        algorithm = config.get("algorithm", {})
        return {
            **known,
            "status": status(folder, last.get("step", 0), config.get("steps")),
            "step": last.get("step", 0),
            "steps": config.get("steps"),
            "algorithm": algorithm.get("name") if isinstance(algorithm, dict) else algorithm,
            "model": _part(config, "model", "path"),
            "task": _part(config, "task", "name"),
            "seed": config.get("seed"),
            "reward": last.get("reward"),
            "accuracy": last.get("accuracy"),
            "greedy_before": before.get("greedy_accuracy"),
            "greedy_after": (summary.get("after") or {}).get("greedy_accuracy"),
            "tokens_per_second": last.get("tokens_per_second"),
            "seconds": summary.get("train_seconds", last.get("seconds")),
            "sparks": {name: thinned([row.get(name) for row in rows], SPARK_POINTS) for name in _SPARKS},
        }

    def config(self, folder: Path) -> dict[str, Any]:
        """As `read_config`, which takes 4 ms, once for each state of the file: it is asked for often."""
        found = (folder / "config.yaml").stat()
        state, known = (found.st_mtime_ns, found.st_size), self._configs.get(folder)
        if known is None or known[0] != state:
            known = self._configs[folder] = (state, read_config(folder))
        return known[1]

    def _grown(self, path: Path) -> list[dict[str, Any]]:
        with self._lock:
            known = self._lines.setdefault(path, _Lines())
            try:
                found = path.stat()
            except FileNotFoundError:
                return []
            # A resume writes the file anew: another file, or a shorter one.
            if known.identity != (found.st_dev, found.st_ino) or found.st_size < known.offset:
                known.identity, known.offset, known.rows = (found.st_dev, found.st_ino), 0, []
            if found.st_size > known.offset:
                with path.open("rb") as file:
                    file.seek(known.offset)
                    whole, _, _ = file.read().rpartition(b"\n")
                known.rows.extend(_totalled(known.rows, _parsed(path, whole)))
                known.offset += len(whole) + 1 if whole else 0
            return list(known.rows)


def status(folder: Path, step: int, steps: int | None) -> Status:
    """What a run is doing, by its lock and its figures."""
    if holder(folder) is not None:
        return "running"
    return "finished" if steps is not None and step >= steps and (folder / "summary.json").is_file() else "stopped"


def holder(folder: Path) -> int | None:
    """The id of the process that has the run's directory now, -1 if it is not known; None when nobody has it."""
    try:
        handle = os.open(folder / "run.lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(handle, 32, 0).decode("ascii", "replace")
        return int(text) if text.isdecimal() else -1
    finally:
        os.close(handle)
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """The run's config.yaml.

    Raises:
        UserError: it is no mapping in YAML.
    """
    try:
        found = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8", errors="replace"))
    except yaml.YAMLError as error:
        raise UserError(f"{folder / 'config.yaml'}: expected YAML ({error}); restore the file") from None
    if not isinstance(found, dict):
        raise UserError(f"{folder / 'config.yaml'}: expected settings, got {str(found)[:60]!r}; restore the file")
    return found


def thinned(values: Sequence[float | None], points: int) -> list[float | None]:
    """At most this many of the values, evenly spaced, the last among them."""
    if len(values) <= points:
        return list(values)
    last = len(values) - 1
    return [values[round(place * last / (points - 1))] for place in range(points)]


def _totalled(before: Sequence[Row], rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    last: Row = before[-1] if before else {"tokens": 0, "seconds": 0.0}
    tokens = accumulate((row.get("completion_tokens") or 0 for row in rows), initial=last["tokens"])
    seconds = accumulate((row.get("time/total") or 0.0 for row in rows), initial=last["seconds"])
    next(tokens), next(seconds)
    for row, spent, took in zip(rows, tokens, seconds, strict=True):
        yield {**row, "tokens": spent, "seconds": took}


def _parsed(path: Path, lines: bytes) -> list[dict[str, Any]]:
    found = []
    for line in lines.decode("utf-8", "replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UserError(f"{path}: expected a JSON object on each line, got {line[:60]!r}; restore the file")
        found.append(row)
    return found


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
        if depth > 1 and not (entry / "config.yaml").is_file():
            yield from _below(entry, depth - 1)


def _changed(folder: Path) -> float:
    times = []
    for name in ("metrics.jsonl", "summary.json", "config.yaml"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def _part(config: Mapping[str, Any], section: str, name: str) -> Any:
    found = config.get(section)
    return found.get(name) if isinstance(found, dict) else found
