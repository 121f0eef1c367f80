"""One output of a notebook cell that is updated, instead of one for each line; rich makes an output of every print."""

from __future__ import annotations

import html
import io
import time
from collections.abc import Callable
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

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

    def end_bars(self) -> None:
        """Removes the text below the lines."""
        self._bars = ""
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
        self._output.end_bars()

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
