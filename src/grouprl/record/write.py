"""Writes a run directory, the only output of a run; docs/run_directory.md describes it.

Files are written atomically (temporary file, fsync, rename). The rollouts of a step are one database transaction, its
metrics one appended line. So a run that is killed at any moment leaves a readable directory.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
import sysconfig
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from grouprl.files import read_json
from grouprl.record.files import append_line, atomic_write_text, json_text, make_directory
from grouprl.record.layout import WRITTEN_BY_A_RUN, RunDirectory, has_failed, lock_directory
from grouprl.record.read import Example, read_json_lines, refuse_foreign, run_identifier
from grouprl.record.rollouts import drop_after, holds_steps, open_rollouts, write_step
from grouprl.types import StepRecord, UserError

_CLOSE_SECONDS = 5.0  # longest wait for a moment without readers; beside constant queries it took 0.75
_LIBRARIES = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")))
_PLACE = re.compile(r"\(([^()\s]+:\d+)\)")  # as a reward's error names the line of its user
_LONGEST = 4000  # characters of a failure's reason


class RunRecord:
    """An open run directory, locked against other processes until `close`; made by `create` or `reopen`."""

    step_in_progress = 0  # for the summary of a failure; 0 = before the first step

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self._files = RunDirectory(directory)
        with ExitStack() as on_error:
            on_error.callback(os.close, lock)
            self._rollouts = on_error.enter_context(closing(open_rollouts(str(self._files.rollouts))))
            on_error.callback(_make_plain, self._rollouts)
            self._closing = on_error.pop_all()
        OPEN.add(self)

    @classmethod
    def create(cls, directory: Path, config_yaml: str) -> RunRecord:
        """Starts a run in a new or empty directory, or replaces a run that recorded nothing; writes config.yaml.

        Raises:
            UserError: the directory cannot be made, has a run already or is in use; nothing is overwritten.
        """
        try:
            make_directory(directory)
        except OSError as error:
            raise UserError(f"{directory}: cannot be made a run directory ({error}); choose another name") from None
        lock = lock_directory(directory)
        try:
            refuse_run(directory)
        except UserError:
            os.close(lock)
            raise
        # First, so that a run that is killed from here on can be resumed.
        atomic_write_text(RunDirectory(directory).config, config_yaml)
        with ExitStack() as on_error:
            record = on_error.enter_context(closing(cls(directory, lock)))
            record._drop_after(0)  # a run that failed before its first step left its summary
            on_error.pop_all()
        return record

    @classmethod
    def reopen(cls, directory: Path, step: int, *, lock: int | None = None) -> RunRecord:
        """Continues a run after `step` (0 = from the start), and drops the records of later steps.

        Args:
            directory: the run.
            step: the last step to keep.
            lock: a handle of `lock_directory`, which the caller closes; None = the directory is not locked yet.

        Raises:
            UserError: `directory` has no run, has something else in rollouts.sqlite, or is in use; nothing is changed.
        """
        files = RunDirectory(directory)
        if not files.exists:
            raise UserError(f"{directory}: expected a run to resume, found no config.yaml; check the name")
        with ExitStack() as on_error:
            held = lock_directory(directory) if lock is None else os.dup(lock)
            record = on_error.enter_context(closing(cls(directory, held)))  # a run that was not begun did not fail
            record._drop_after(step)
            record.step_in_progress = step
            on_error.pop_all()
        return record

    def _drop_after(self, step: int) -> None:
        files = self._files
        # Results of an evaluation that was not recorded to its end are made again.
        evaluated = {row["step"] for row in read_json_lines(files.evaluations)}
        examples, kept = read_json(files.examples), {}
        refuse_foreign(examples, run_identifier(self.directory), files.examples)
        for path in filter(Path.exists, files.line_files):
            kept[path] = [row for row in read_json_lines(path) if row["step"] <= step]
            if path == files.held_out:
                kept[path] = [row for row in kept[path] if row["step"] in evaluated]
            if path in (files.evaluations, files.held_out):
                kept[path] = [self._signed(row) for row in kept[path]]
        for path, rows in kept.items():  # after all were read: a damaged one is refused before any is changed
            atomic_write_text(path, "".join(json_text(row) + "\n" for row in rows))
        shown = {when: rows for when, rows in examples.items() if not step < _moment(when) < math.inf}
        if shown != examples:
            atomic_write_text(files.examples, json_text(self._signed(shown), indent=2) + "\n")
        drop_after(self._rollouts, step)
        if _says_failed(self._files.summary):
            self._files.summary.unlink()

    def _signed(self, contents: Mapping[str, Any]) -> dict[str, Any]:
        """With the id of the run, so that a file that is copied into another run is noticed."""
        run = run_identifier(self.directory)
        return {**contents} if run is None else {**contents, "run": run}

    def step(self, record: StepRecord) -> None:
        """Records one step: its rollouts, then its metrics."""
        write_step(self._rollouts, record)
        append_line(self._files.metrics, json_text({"step": record.step, **record.metrics}))

    def evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """Records an evaluation on held-out problems after `step` updates, after its `held_out` and `examples`."""
        append_line(self._files.evaluations, json_text(self._signed({"step": step, **values})))

    def warning(self, row: Mapping[str, Any]) -> None:
        """Records a finding about a step (the fields of `report.health.Finding`)."""
        append_line(self._files.warnings, json_text(row))

    def held_out(self, step: int, results: Mapping[str, Any]) -> None:
        """Records an evaluation's results for each problem (the fields of `evaluation.ProblemResults`)."""
        append_line(self._files.held_out, json_text(self._signed({"step": step, **results})))

    def examples(self, when: str, rows: Sequence[Example]) -> None:
        """Records a few held-out problems with completions; replaces earlier examples of the same `when`.

        `when` is "before", "step N" or "after"; the file has them in this order.
        """
        path = self._files.examples
        examples = read_json(path)
        refuse_foreign(examples, run_identifier(self.directory), path)
        examples[when] = [asdict(row) for row in rows]
        ordered = self._signed({when: examples[when] for when in sorted(examples, key=_moment)})
        atomic_write_text(path, json_text(ordered, indent=2) + "\n")

    def settings(self, config_yaml: str) -> None:
        """Replaces config.yaml: a resume may change settings that earlier steps do not depend on."""
        atomic_write_text(self._files.config, config_yaml)

    def rewards(self, weights: Mapping[str, float], process: Mapping[str, float]) -> None:
        """Records the weights of rewards by name: in the total, and of process rewards on each step.

        They are recorded because config.yaml does not name a task's own rewards.
        """
        atomic_write_text(self._files.rewards, json_text({"weights": weights, "process": process}, indent=2) + "\n")

    def summary(self, values: Mapping[str, Any]) -> None:
        """Replaces summary.json."""
        atomic_write_text(self._files.summary, json_text(self._signed(values), indent=2) + "\n")

    def close(self) -> None:
        """Makes the rollouts one plain file and releases the directory. Closing twice is harmless."""
        OPEN.discard(self)
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception):  # Ctrl-C stops a run, which is no failure
                with suppress(OSError):  # of a full disk, for example, which `error` names
                    self.fail(error)
        finally:
            self.close()

    def fail(self, error: Exception) -> None:
        """Writes into summary.json why the run failed."""
        is_sentence = isinstance(error, UserError | FloatingPointError)
        reason = str(error) if is_sentence else f"{type(error).__name__}: {error}"
        failure = {"state": "failed", "reason": reason[:_LONGEST], "step": self.step_in_progress}
        self.summary({**failure, "frame": user_frame(error)})


OPEN: WeakSet[RunRecord] = WeakSet()
"""The open records of this process, for what ends it without an exception."""


class NoRecord(RunRecord):
    """The record of a rank beside the one that writes: it writes nothing, and locks nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._closing = directory, ExitStack()

    def _nothing(self, *_: Any, **__: Any) -> None: ...

    step = evaluation = warning = held_out = examples = rewards = fail = _nothing


def user_frame(error: BaseException) -> str | None:
    """FILE:LINE of the newest code in an error that is neither GroupRL's nor a library's; None without such code.

    Of a reward, which runs in another process, the text of the error names the line.
    """
    cause: BaseException | None = error
    while cause is not None:
        frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(cause.__traceback__)]
        user_frames = [
            f"{path}:{line}"
            for path, line in frames
            if path.is_absolute() and not any(path.is_relative_to(folder) for folder in _LIBRARIES)
        ]
        if user_frames:
            return user_frames[-1]
        cause = cause.__cause__ or cause.__context__
    match = _PLACE.search(str(error))
    return match[1] if match else None


def _moment(when: str) -> float:
    step = when.removeprefix("step ")
    return -1 if when == "before" else int(step) if step.isdecimal() else math.inf


def refuse_run(directory: Path) -> None:
    """Raises UserError for a directory that holds a run, which a new run must not replace."""
    if held := held_files(directory):
        raise UserError(
            f"{directory}: expected a new run directory, but it already holds a run ({', '.join(held)}); "
            f"continue that run with grouprl train --resume {directory} (in Python train(resume=True)), or choose "
            f"another name, and --model {directory} to train its model further"
        )


def held_files(directory: Path) -> list[str]:
    """The files of a run that a new run must not replace; none where a run recorded nothing."""
    held = [name for name in WRITTEN_BY_A_RUN if (directory / name).exists()]
    # Both files, because a run makes both at once: a config.yaml alone may be somebody's own.
    files = RunDirectory(directory)
    first_files = {files.config.name, files.rollouts.name}
    beside = {files.rewards.name, files.code.name, files.trackers.name}
    beside |= {files.summary.name} if _says_failed(files.summary) else set()
    return [] if set(held) - beside == first_files and not holds_steps(files.rollouts) else held


def _says_failed(summary: Path) -> bool:
    with suppress(UserError):  # a damaged one is somebody's: it stays
        return has_failed(read_json(summary))
    return False


def _make_plain(database: sqlite3.Connection) -> None:
    """Leaves WAL mode, in which a file cannot be read from a read-only place, and a copy of it lacks its last steps.

    SQLite allows this only without readers, so it tries again and again: a page that shows the run reads it often.
    """
    database.execute("PRAGMA busy_timeout=50")  # milliseconds
    until = time.monotonic() + _CLOSE_SECONDS
    while True:
        try:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            database.execute("PRAGMA journal_mode=DELETE")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                return
            time.sleep(0.003)
