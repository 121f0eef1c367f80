"""Runs several variants on the same seeds; each run is an ordinary run directory, made by a separate process.

Separate processes are necessary because peak memory is measured per process: a shared process would report the peak of
earlier runs too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grouprl.config.comparison import CompareConfig
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory, lock_directory
from grouprl.record.read import read_run
from grouprl.run.process import StopRequest, start_run, stop_on_signal
from grouprl.run.terminal import Advance, Terminal
from grouprl.run.verdict import verdict
from grouprl.tools.compare.plan import PlannedRun, Resolve, planned_runs, refuse_other_runs
from grouprl.tools.compare.read import COMPARISON_FILE, read_comparison
from grouprl.tools.compare.report import comparison_verdict, write_comparison
from grouprl.types import UserError

POLL_SECONDS = 0.3
_END_SECONDS = 600.0  # a run that is asked to stop finishes its step and saves


@dataclass(frozen=True)
class ComparisonResult:
    """The result of `compare`: finished, or stopped on request."""

    directory: Path
    finished: bool  # False when the user stopped it before its last run
    failed: tuple[str, ...]  # folders of the runs that ended with an error


def compare(config: CompareConfig, resolve: Resolve, *, terminal: Terminal | None = None) -> ComparisonResult:
    """Makes the missing runs of a comparison, seed by seed, and writes its report.

    It keeps finished runs and continues interrupted runs from their checkpoints. A run that fails (a policy that
    diverged, too little memory) is not in the report and does not stop the others.

    Args:
        config: the comparison.
        resolve: makes the configuration of a run.
        terminal: the terminal that shows progress.

    Raises:
        UserError: lists the errors of all runs before the first run starts; or a run ended with a user error.
    """
    terminal = terminal or Terminal()
    planned = planned_runs(config, resolve)
    directory = Path(config.runs_dir) / config.name
    refuse_other_runs(directory, planned)
    directory.mkdir(parents=True, exist_ok=True)
    lock = lock_directory(directory)
    try:
        atomic_write_text(directory / COMPARISON_FILE, json_text(config.model_dump(mode="json"), indent=2) + "\n")
        left = [run for run in planned if not run.finished]
        terminal.say(f"{directory}: {len(planned)} runs, {len(planned) - len(left)} of them finished.")
        with stop_on_signal(terminal.say) as stop:
            failed = _run_all(planned, left, config.jobs, terminal, stop)
        with terminal.status("writing the report"):
            report = write_comparison(directory)
    finally:
        os.close(lock)
    terminal.say(comparison_verdict(read_comparison(directory)))
    terminal.say(f"Report: {report}")
    unfinished = [run for run in planned if not run.finished and run.config.name not in failed]
    if unfinished:
        terminal.say(f"Stopped: {len(unfinished)} runs are unfinished. Run this command again to continue.")
    return ComparisonResult(directory, not unfinished, failed)


# The runs


@dataclass
class _Process:
    """A run in a separate process."""

    run: PlannedRun
    process: subprocess.Popen[bytes]
    shown: int  # steps that the progress bar has counted
    asked_to_stop: bool = False


def _run_all(
    planned: Sequence[PlannedRun], left: Sequence[PlannedRun], jobs: int, terminal: Terminal, stop: StopRequest
) -> tuple[str, ...]:
    """Makes the remaining runs, `jobs` at a time; returns the names of failed runs."""
    waiting, running, failed = deque(left), list[_Process](), list[str]()
    with terminal.progress("comparing", sum(run.config.steps for run in planned)) as advance:
        advance(sum(run.config.steps for run in planned if run not in left))
        try:
            while running or (waiting and not stop.asked):
                while waiting and len(running) < jobs and not stop.asked:
                    running.append(_start(waiting.popleft(), advance))
                time.sleep(POLL_SECONDS)
                _show(running, advance)
                for child in running if stop.asked else ():
                    if not child.asked_to_stop:  # Ctrl-C does not reach a run's session: send it one SIGTERM
                        child.asked_to_stop = True
                        child.process.terminate()
                for child in [child for child in running if child.process.poll() is not None]:
                    running.remove(child)
                    failed += _ended(child, terminal, stop)
        finally:
            # A second Ctrl-C or an error: no process outlives this one.
            for child in running:
                child.process.terminate()
            for child in running:
                try:
                    child.process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    child.process.kill()
    return tuple(failed)


def _start(run: PlannedRun, advance: Advance) -> _Process:
    files = RunDirectory(run.directory)
    resume = files.exists
    run.directory.mkdir(parents=True, exist_ok=True)
    settings = [f"{key}={json.dumps(value)}" for key, value in run.config.model_dump(mode="json").items()]
    process = start_run(files, settings, files.console, resume=resume)
    steps = run.newest.get("step", 0)
    advance(steps, run.config.name)
    return _Process(run, process, steps)


def _ended(child: _Process, terminal: Terminal, stop: StopRequest) -> list[str]:
    """Reports how a run ended; returns its name if it failed.

    Raises:
        UserError: the run ended with a user error before its first step, which the other runs would have too.
    """
    run, code = child.run, child.process.returncode
    console = RunDirectory(run.directory).console
    if code == 0 and run.finished:
        terminal.say(f"{run.config.name}: {verdict(read_run(run.directory))}")
        return []
    if stop.asked and child.asked_to_stop:
        return []
    last = " ".join(console.read_text(encoding="utf-8", errors="replace").split("\n")[-3:]).strip()
    if code == 2 and not run.newest:
        raise UserError(f"{run.directory}: {last.rpartition('error: ')[2]}")
    terminal.say(f"{run.config.name}: failed with code {code}: {last[-300:]} (all of it: {console})")
    return [run.config.name]


def _show(running: Sequence[_Process], advance: Advance) -> None:
    for child in running:
        newest = child.run.newest
        step = int(newest.get("step", 0))
        metrics = "".join(
            f" {label} {newest[name]:{form}}"
            for name, label, form in (("reward", "reward", ".2f"), ("accuracy", "correct", ".0%"))
            if isinstance(newest.get(name), float)
        )
        advance(step - child.shown, f"{child.run.config.name} {step}/{child.run.config.steps}{metrics}")
        child.shown = step
