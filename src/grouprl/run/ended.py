"""A run that ended: where it is, what came of it, its metrics as a table; a notebook shows it with two curves."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

from grouprl.leaves import find_leaf
from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedRun, read_run
from grouprl.run.verdict import verdict

Row = Mapping[str, Any]
_SHOWN = ("step", "reward", "reward_std", "accuracy", "frac_reward_zero_std", "completions/mean_length", "kl", "loss")
_CURVES = (("reward", "Mean reward"), ("accuracy", "Accuracy on training problems"), ("kl", "KL to the reference"))
_WIDTH, _HEIGHT = 300, 90


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

    def _repr_html_(self) -> str:
        """The main metrics of every step, in a box that scrolls."""
        names = [name for name in _SHOWN if name in self.names]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = (f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in names)}</tr>" for row in self.rows)
        return (
            f'<div style="max-height: 24em; overflow: auto"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )


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

    def _repr_html_(self) -> str:
        """The verdict, the first two curves that the run has, and a link to its report."""
        run, report = read_run(self.directory), RunDirectory(self.directory).report
        curves = [_curve(run, name, label) for name, label in _CURVES if len(run.column(name)[0]) > 1]
        return (
            f"<p><b>{html.escape(self.directory.name)}</b>: {html.escape(verdict(run))}</p>"
            f'<div style="display: flex; gap: 2em; flex-wrap: wrap">{"".join(curves[:2])}</div>'
            f'<p><a href="{html.escape(report.as_posix())}" target="_blank">{html.escape(str(report))}</a></p>'
        )


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else html.escape(str(value))


def _curve(run: RecordedRun, name: str, label: str) -> str:
    """A curve as SVG, with its first, least, largest and last value in words."""
    steps, values = run.column(name)
    low, high = min(values), max(values)
    wide, tall = steps[-1] - steps[0], (high - low) or math.inf  # a constant is a line at the bottom
    points = " ".join(
        f"{(step - steps[0]) / wide * _WIDTH:.1f},{_HEIGHT - (value - low) / tall * _HEIGHT:.1f}"
        for step, value in zip(steps, values, strict=True)
    )
    said = f"{label}, steps {steps[0]} to {steps[-1]}: {values[0]:.3g} to {values[-1]:.3g}"
    return (
        f'<figure style="margin: 0"><svg width="{_WIDTH + 8}" height="{_HEIGHT + 8}" viewBox="-4 -4 {_WIDTH + 8} '
        f'{_HEIGHT + 8}" role="img" aria-label="{html.escape(said)}"><polyline points="{points}" fill="none" '
        f'stroke="#2a78b8" stroke-width="1.5"/></svg><figcaption>{html.escape(said)} (least {low:.3g}, largest '
        f"{high:.3g})</figcaption></figure>"
    )


def report_of(directory: Path) -> Path | str:
    """Writes the report of a run directory; its path, or why there is none."""
    write = find_leaf("report")
    return "none, because the folder grouprl/lab is missing" if write is None else cast(Path, write(directory))
