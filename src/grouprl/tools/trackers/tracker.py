"""What each tracker can do, and what it is given; one file for each library holds a tracker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class About:
    """The run that is shown."""

    name: str
    project: str
    settings: Mapping[str, Any]  # the configuration as JSON values
    folder: Path  # where a tracker may keep files of this run
    runs: Path  # the folder of all runs
    id: str | None  # of an earlier session of this run in the same tracker; None = a new run
    after: int  # the last step that was recorded before


@dataclass(frozen=True)
class Shown:
    """Where a tracker shows the run."""

    id: str
    link: str  # an address, or a command


@dataclass(frozen=True)
class Table:
    """Completions of one step."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]  # text, numbers and None


class Tracker(Protocol):
    """A tracker. Its methods are called one after the other by a single thread, and may raise anything."""

    def begin(self, about: About) -> Shown:
        """Starts the run, or continues it."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends finite numbers of a step, as train/NAME and eval/NAME."""
        ...

    def completions(self, step: int, table: Table) -> None:
        """Sends a table of a step's completions."""
        ...

    def end(self, *, failed: bool) -> None:
        """Sends what is left, and closes the run."""
        ...
