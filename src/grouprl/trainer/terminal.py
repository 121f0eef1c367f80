"""What the terminal shows during a run: progress bars, one line a step, a table at the end."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from grouprl.forward.progress import PROGRESS
from grouprl.leaves import find_leaf
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_run
from grouprl.run.display import Advance, RunEnd
from grouprl.trainer.finished import Run, report_of
from grouprl.trainer.verdict import duration, verdict
from grouprl.types import counted

COLUMNS = (
    # heading, metric, format, width
    ("reward", "reward", "{:.2f}", 6),
    ("correct", "accuracy", "{:.0%}", 7),
    ("length", "completions/mean_length", "{:.1f}", 6),
    ("signal", "signal", "{:.0%}", 6),
    ("KL", "kl", "{:.3f}", 6),
    ("gap", "sampler_learner_gap", "{:.0e}", 6),
    ("tok/s", "tokens_per_second", "{:,.0f}", 7),
    ("sample", "time/rollout", "{:.2f}s", 6),
    ("learn", "learn", "{:.2f}s", 6),
)
QUIET = 25.0  # seconds after which a log file gets a line about long work
LEGEND = (
    "signal: groups whose rewards differ. KL: nats a token from the reference. gap: largest difference of a token's "
    "log-prob, sampler to learner. sample, learn: seconds."
)

WORKED = "worked share: completions with an equation before the answer."


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return Console().is_jupyter


@dataclass(frozen=True)
class TrainingBars:
    """Handles of the two bars of a training run."""

    progress: Progress
    steps: TaskID
    completions: TaskID

    def sampled(self, count: int) -> None:
        """`count` more completions of the step are finished."""
        self.progress.update(self.completions, advance=count)

    def stepped(self) -> None:
        """One more step is done."""
        self.progress.update(self.steps, advance=1)
        self.progress.reset(self.completions)


class _Output:
    """Standard output; when it is closed or full (`grouprl train | head -1`), the run continues without it."""

    def write(self, text: str) -> int:
        return self._tried(lambda: sys.stdout.write(text)) or 0

    def flush(self) -> None:
        self._tried(sys.stdout.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)  # whether it is a terminal, its encoding

    def _tried(self, act: Callable[[], int | None]) -> int | None:
        try:
            return act()
        except OSError:
            # For everybody who writes there, and for Python itself, which flushes at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            return None


class Terminal:
    """Writes to a console; every method is safe when the output is a file."""

    def __init__(self, console: Console | None = None, *, errors: bool = False) -> None:
        """`errors`: to standard error, where standard output is for a program to read."""
        console = Console(stderr=True, highlight=False, soft_wrap=True) if errors else console
        self._columns: tuple[tuple[str, str, str, int], ...] = COLUMNS
        self._newest = time.monotonic()  # when the newest line was written
        notebook: Any = find_leaf("notebook") if console is None and in_notebook() else None
        self._notebook, self._cell = notebook, None if notebook is None else notebook.CellOutput()
        if self._cell is not None:
            self.console = notebook.cell_console(self._cell)
        else:
            self.console = console or Console(file=cast(IO[str], _Output()), highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line of text, shown as it is."""
        self._newest = time.monotonic()
        self.console.print(text, markup=False, emoji=False)

    def silent(self) -> Terminal:
        """A terminal that shows nothing, for a rank that does not lead."""
        return Terminal(Console(quiet=True))

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Advance]:
        """A progress bar; the value is called with the number of items that were done, and a new text if it changes."""
        with self._bars() as progress, self._lines(partial(_of_bars, progress)):
            bar = progress.add_task(what, total=total)
            yield lambda done, text=None: progress.update(bar, advance=done, description=text)

    @contextmanager
    def status(self, what: str) -> Iterator[Callable[[str], None]]:
        """A sign of life for work of unknown length; the value says what is done now."""

        def change(text: str) -> None:
            nonlocal what
            what = text
            shown.update(text)

        with self.console.status(what) as shown, self._lines(lambda: what):
            yield change

    @contextmanager
    def _lines(self, describe: Callable[[], str]) -> Iterator[None]:
        """Says what the block does after each `QUIET` seconds without a line where there are no bars: in a log file."""
        if self.console.is_terminal or self.console.quiet or self._cell is not None:
            yield
            return
        over, began = threading.Event(), time.monotonic()
        self._newest = began

        def report() -> None:
            while not over.wait(max(0.01, self._newest + QUIET - time.monotonic())):
                if time.monotonic() >= self._newest + QUIET:
                    inside = ", ".join(text.partition(": ")[2] for text in PROGRESS.now())
                    self.say(
                        f"         {describe()}, after {duration(time.monotonic() - began)}{inside and f' ({inside})'}"
                    )

        reporter = threading.Thread(target=report, daemon=True, name="lines")
        reporter.start()
        try:
            yield
        finally:
            over.set()
            reporter.join(1.0)  # it only waits for `over`, or writes a line

    @contextmanager
    def training(self, steps: int, done: int, completions: int) -> Iterator[TrainingBars]:
        """Bars under the lines of the steps: steps of the run, completions of the step."""
        with self._bars() as progress, self._lines(partial(_of_bars, progress)):
            completions_bar = progress.add_task("completions", total=completions)
            steps_bar = progress.add_task("steps", total=steps, completed=done)
            yield TrainingBars(progress, steps_bar, completions_bar)

    def _bars(self) -> Progress:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        if self._cell is not None:
            return cast(Progress, self._notebook.cell_bars(self._cell, *columns))
        return Progress(
            *columns,
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,  # a log file gets the lines alone
        )

    def heading(self, *, accuracy: bool = True) -> None:
        """The names of a step line's columns, with that of correct completions where `accuracy` is measured."""
        self._columns = COLUMNS if accuracy else tuple(column for column in COLUMNS if column[1] != "accuracy")
        names = [f"{heading:>{width}}" for heading, _, _, width in self._columns]
        self.console.print("[dim]" + "  ".join(["    step", *names]) + "[/dim]")

    def legend(self) -> None:
        """What the columns of the step lines mean."""
        self.console.print(f"[dim]{LEGEND}[/dim]")

    def step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """One line: what the policy did, and where the time went."""
        shown = {
            **metrics,
            "signal": 1 - metrics["frac_reward_zero_std"],
            "learn": metrics["time/reference"] + metrics["time/learn"],
        }
        cells = [f"{_cell(shown.get(metric), form):>{width}}" for _, metric, form, width in self._columns]
        self.say("  ".join([f"{step:>4}/{steps:<3}", *cells]))

    def invalid(self, reasons: Sequence[str], completions: int, what: str = "completions") -> None:
        """A line about completions that could not be judged; nothing when all could."""
        if reasons:
            common = "; ".join(f"{reason} ({times})" for reason, times in Counter(reasons).most_common(3))
            self.say(f"         {len(reasons)} of {completions} {what} invalid: {common}")

    def comparison(self, before: Mapping[str, Any], after: Mapping[str, Any], measure: str = "greedy_accuracy") -> None:
        """A table of two evaluations; mean rewards where accuracy does not measure the run."""
        table = Table(title=counted(after["problems"], "held-out problem"), title_justify="left")
        for heading in ("", "before", "after"):
            table.add_column(heading, justify="left" if not heading else "right")
        for name in dict.fromkeys((*after, *before)):
            is_reward = name == "reward" or name.startswith("rewards/")
            if (
                name != "problems"
                and not name.endswith("_interval")
                and not (is_reward and measure == "greedy_accuracy")
            ):
                form = "{:.1f}" if name == "mean_length" else "{:.3f}" if is_reward else "{:.1%}"
                # A resumed run may be judged with more samples than it was before its first step.
                cells = [_cell(before.get(name), form), _cell(after.get(name), form)]
                title = name.removeprefix("rewards/").removesuffix("/mean") if is_reward else name.replace("_", " ")
                table.add_row("mean reward" if name == "reward" else title, *cells)
        if table.row_count:  # without a verifier nothing was judged
            self.console.print(table)
        if "worked_share" in after:
            self.console.print(f"[dim]{WORKED}[/dim]")

    def end(self, end: RunEnd) -> None:
        """Writes the report of a run that ended now, and shows what came of it."""
        directory = end.directory
        with self.status("writing the report"):
            report = report_of(directory)
        self.say(verdict(read_run(directory)))
        self.legend()
        self.say(f"Report: {report}\nModel: {Run(directory, end.summary, end.finished).checkpoint}")
        self.say(f"Try: grouprl sample {directory}, grouprl lab {directory.parent}")
        if not end.finished:
            self.say(
                f"Stopped after step {end.summary['steps']} of {end.steps}. Continue with --resume. "
                "In Python: train(resume=True)."
            )

    def completed(self, end: RunEnd, *, repaired: bool) -> None:
        """Says that a run had all of its steps, and writes its report where a kill in its last moment left none."""
        if repaired or not RunDirectory(end.directory).report.exists():
            self.say(f"Completed what a kill at the end of {end.directory} left: {report_of(end.directory)}")
        self.say(
            f"{end.directory} has finished all of its {end.steps} steps: nothing is missing. To train further, give a "
            "larger number, steps=N, or in Python RunConfig(steps=N)."
        )


def _of_bars(progress: Progress) -> str:
    """What is done and what is left: "evaluate: 1,500 of 4,500, about 2 min 4 s left"."""
    parts = []
    for task in progress.tasks:
        total, elapsed = task.total or 0, task.elapsed or 0.0
        left = elapsed * (total / task.completed - 1) if 0 < task.completed < total and elapsed > 0 else None
        shown = "" if left is None else f", about {duration(left)} left"
        parts.append(f"{task.description}: {task.completed:,.0f} of {total:,.0f}{shown}")
    return "; ".join(parts)


def visible(text: str) -> str:
    r"""Writes characters that a terminal would obey as escapes; line breaks and tabs stay.

    >>> visible("a\x1b[2J\tb\u202e")
    'a\\x1b[2J\tb\\u202e'
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else form.format(value)
