"""A run that ended: where it is, what came of it, its metrics as a table; a notebook shows it with two curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

from grouprl.leaves import find_leaf
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_run

Row = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class MetricsTable(Sequence[Row]):
    """The rows of metrics.jsonl, one for each step; `pandas.DataFrame(table)` and `table.column("reward")` work."""

    rows: tuple[Row, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics of all steps, in the order of their first step."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def column(self, name: str) -> list[float | None]:
        """The values of a metric, one for each step; None where the step has none.

        Raises:
            KeyError: no step has it.
        """
        if name not in self.names:
            raise KeyError(name)
        return [row.get(name) for row in self.rows]

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> MetricsTable: ...
    def __getitem__(self, at: int | slice) -> Row | MetricsTable:
        return MetricsTable(self.rows[at]) if isinstance(at, slice) else self.rows[at]

    def __repr__(self) -> str:
        return f"MetricsTable({len(self)} steps of {', '.join(self.names)})"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def _repr_html_(self) -> str | None:
        """The main metrics of every step, in a box that scrolls."""
        shown = find_leaf("notebook")
        return None if shown is None else str(shown.table_html(self.rows, self.names))


@dataclass(frozen=True)
class Run:
    """A run that ended: finished, or stopped on request."""

    directory: Path
    summary: dict[str, Any]  # of summary.json
    finished: bool  # False when the user stopped it before its last step

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the newest checkpoint, a model in Hugging Face layout; None before the first one."""
        saved = RunDirectory(self.directory).saved_models()
        return saved[-1].path if saved else None

    def metrics(self) -> MetricsTable:
        """Reads the metrics of every step."""
        return MetricsTable(read_run(self.directory).metrics)

    def _repr_html_(self) -> str | None:
        """The verdict, the first two curves that the run has, and a link to its report."""
        shown = find_leaf("notebook")
        return None if shown is None else str(shown.run_html(self.directory))


def report_of(directory: Path) -> Path | str:
    """Writes the report of a run directory; its path, or why there is none."""
    write = find_leaf("report")
    return "none, because the folder grouprl/lab is missing" if write is None else cast(Path, write(directory))
