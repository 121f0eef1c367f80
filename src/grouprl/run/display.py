"""What a run tells the person who watches it; `grouprl.trainer.terminal` shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class RunEnd:
    """How a run ended: finished, or stopped on request."""

    directory: Path
    summary: dict[str, Any]  # of summary.json
    finished: bool  # False when the user stopped it before its last step
    steps: int  # that its configuration asks for


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, done: int, text: str | None = None) -> None:
        """`done` more items; `text` replaces what stands before the bar."""
        ...


class StepBars(Protocol):
    """The bars of a training run."""

    def sampled(self, count: int) -> None:
        """`count` more completions of the step are finished."""
        ...

    def stepped(self) -> None:
        """One more step is done."""
        ...


class Display(Protocol):
    """Shows a run. Every method is safe when nobody watches."""

    def say(self, text: str) -> None:
        """One line of text."""
        ...

    def silent(self) -> Display:
        """The same display that shows nothing, for a rank that does not lead."""
        ...

    def progress(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """A progress bar."""
        ...

    def status(self, what: str) -> AbstractContextManager[object]:
        """A sign of life for work of unknown length."""
        ...

    def training(self, steps: int, done: int, completions: int) -> AbstractContextManager[StepBars]:
        """Bars under the lines of the steps."""
        ...

    def heading(self, *, accuracy: bool = True) -> None:
        """The names of a step line's columns."""
        ...

    def step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """The line of a step."""
        ...

    def invalid(self, reasons: Sequence[str], completions: int, what: str = "completions") -> None:
        """A line about completions that could not be judged."""
        ...

    def comparison(self, before: Mapping[str, Any], after: Mapping[str, Any], measure: str = "greedy_accuracy") -> None:
        """A table of two evaluations."""
        ...

    def end(self, end: RunEnd) -> None:
        """Writes the report of a run that ended now, and shows what came of it."""
        ...

    def completed(self, end: RunEnd, *, repaired: bool) -> None:
        """Says that a run had all of its steps; `repaired`: a kill in its last moment had left something."""
        ...
