"""What a notebook shows: one output of a cell, updated, because rich makes one of every print; a run, a table."""

from __future__ import annotations

import html
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedRun, read_run
from grouprl.trainer.verdict import verdict

_LINES = 500  # lines shown: each update sends them all
_SECONDS = 0.2  # between two pictures of the bars


class CellOutput:
    """A file whose text is one output of the cell that began to write to it; the bars stand below the lines."""

    def __init__(self) -> None:
        self._lines, self._bars, self._drawn, self._handle = [""], "", 0.0, cast(Any, None)

    def write(self, text: str) -> int:
        """Adds text."""
        first, *rest = text.split("\n")
        self._lines[-1] += first
        self._lines = [*self._lines, *rest][-_LINES:]
        return len(text)

    def flush(self) -> None:
        """Shows what was written."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)

    def bars(self, draw: Callable[[], str]) -> None:
        """Replaces the text below the lines, at most five times a second."""
        if time.monotonic() > self._drawn + _SECONDS:
            self._bars, self._drawn = draw(), time.monotonic()
            self.flush()

    def __repr__(self) -> str:
        return "\n".join(self._lines) + self._bars

    def _repr_html_(self) -> str:
        return f'<pre style="white-space: pre; overflow-x: auto; line-height: 1.3">{html.escape(repr(self))}</pre>'


def cell_bars(output: CellOutput, *columns: ProgressColumn) -> Progress:
    """Progress bars as text in the output of a cell."""
    return _CellBars(output, *columns)


class _CellBars(Progress):
    def __init__(self, output: CellOutput, *columns: ProgressColumn) -> None:
        super().__init__(*columns, disable=True)
        self._output = output

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._output.bars(self._drawn)

    def stop(self) -> None:
        super().stop()
        self._output._bars = ""
        self._output.flush()

    def _drawn(self) -> str:
        text = io.StringIO()
        cell_console(text, soft_wrap=False).print(self.get_renderable())
        return text.getvalue()


def cell_console(file: CellOutput | IO[str], *, soft_wrap: bool = True) -> Console:
    """A console of plain text, for the output of a cell."""
    # A kernel asks for colors by its environment (FORCE_COLOR), which would be escapes in the text.
    return Console(
        file=cast(IO[str], file),
        highlight=False,
        soft_wrap=soft_wrap,
        width=100,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
    )


_SHOWN = ("step", "reward", "reward_std", "accuracy", "frac_reward_zero_std", "completions/mean_length", "kl", "loss")
_CURVES = (("reward", "Mean reward"), ("accuracy", "Accuracy on training problems"), ("kl", "KL to the reference"))
_WIDTH, _HEIGHT = 300, 90


def table_html(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """The main metrics of every step, in a box that scrolls."""
    names = [name for name in _SHOWN if name in columns]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = (f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in names)}</tr>" for row in rows)
    return (
        f'<div style="max-height: 24em; overflow: auto"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def run_html(directory: Path) -> str:
    """The verdict, the first two curves that the run has, and a link to its report."""
    run, report = read_run(directory), RunDirectory(directory).report
    curves = [_curve(run, name, label) for name, label in _CURVES if len(run.column(name)[0]) > 1]
    return (
        f"<p><b>{html.escape(directory.name)}</b>: {html.escape(verdict(run))}</p>"
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
