"""Several variants of a run on the same seeds: each an ordinary run directory made by a process of its own.

The process is the point: the most memory a process ever held is a number of the whole process, so a run that shared
one would be charged for the runs before it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from grouprl.checkpoint import checkpoints
from grouprl.config import RunConfig, load_config
from grouprl.config_compare import CompareConfig
from grouprl.interrupts import StopRequest, stop_on_signal
from grouprl.lab.comparison import COMPARISON_FILE, read_comparison, run_folder
from grouprl.lab.comparison_report import comparison_verdict, write_comparison
from grouprl.lab.files import atomic_write_text, json_text, lock_directory
from grouprl.lab.read import read_json, read_run
from grouprl.lab.report import verdict
from grouprl.lab.terminal import Advance, Terminal
from grouprl.resume import differences
from grouprl.tasks import load_task
from grouprl.trainer import configured_rewards
from grouprl.types import UserError

Resolve = Callable[[Sequence[str]], RunConfig]
"""What `grouprl train` takes (files, recipes, changes such as steps=10), as a configuration."""

POLL_SECONDS = 0.3
_PLACE = ("name", "runs_dir")  # of a run; everything else is what it is
_DECIDED = (*_PLACE, "seed")  # by the comparison
_TAIL_BYTES = 1 << 14  # the last line of metrics.jsonl is far shorter


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison."""

    variant: str
    config: RunConfig

    @property
    def directory(self) -> Path:
        """Its run directory."""
        return Path(self.config.runs_dir) / self.config.name

    @property
    def finished(self) -> bool:
        """Whether its last step and the evaluation after it are made."""
        summary = read_json(self.directory / "summary.json")
        return "after" in summary and bool(summary["steps"] >= self.config.steps)

    @property
    def steps_made(self) -> int:
        """Steps that are recorded."""
        return int(_newest(self.directory).get("step", 0))


@dataclass(frozen=True)
class Compared:
    """A finished or stopped comparison."""

    directory: Path
    completed: bool  # False when it was asked to stop before its last run
    failed: tuple[str, ...]  # folders of the runs that ended with an error


def compare(config: CompareConfig, resolve: Resolve, *, terminal: Terminal | None = None) -> Compared:
    """Makes the runs of a comparison that are not made yet, seed by seed, and writes its report.

    A run that is finished is kept, one that was interrupted goes on from its checkpoint. A run that fails (a policy
    that diverged, too little memory) is left out of the report and does not stop the others.

    Args:
        config: the comparison.
        resolve: reads the configuration of a run.
        terminal: where progress is shown.

    Raises:
        UserError: before the first run, with every mistake of every run; or what a run says that the user can mend.
    """
    terminal = terminal or Terminal()
    planned = planned_runs(config, resolve)
    directory = Path(config.runs_dir) / config.name
    _refuse_other_runs(directory, planned)
    directory.mkdir(parents=True, exist_ok=True)
    lock = lock_directory(directory)
    try:
        atomic_write_text(directory / COMPARISON_FILE, json_text(config.model_dump(mode="json"), indent=2) + "\n")
        left = [run for run in planned if not run.finished]
        terminal.say(f"{directory}: {len(planned)} runs, {len(planned) - len(left)} of them finished.")
        with stop_on_signal(terminal.say) as stop:
            failed = _run_all(planned, left, config.jobs, terminal, stop)
        with terminal.status("drawing the report"):
            report = write_comparison(directory)
    finally:
        os.close(lock)
    terminal.say(comparison_verdict(read_comparison(directory)))
    terminal.say(f"Report: {report}")
    unfinished = [run for run in planned if not run.finished and run.config.name not in failed]
    if unfinished:
        terminal.say(f"Stopped with {len(unfinished)} runs to go; the same command goes on.")
    return Compared(directory, not unfinished, failed)


def planned_runs(config: CompareConfig, resolve: Resolve) -> tuple[PlannedRun, ...]:
    """Every run, seed by seed, so that a comparison that is stopped early is balanced; nothing is written.

    Raises:
        UserError: with the mistakes of every variant, each told once.
    """
    planned, mistakes = [], _Mistakes(len(config.variants))
    folder = str(Path(config.runs_dir) / config.name)
    for seed in config.seeds:
        for variant, changes in config.variants.items():
            given = [*config.base, *config.settings, *changes]
            decided = [f"name={run_folder(variant, seed)}", f"seed={seed}", f"runs_dir={json.dumps(folder)}"]
            with mistakes.of(variant):
                _refuse_decided(given)
            with mistakes.of(variant):
                planned.append(PlannedRun(variant, _checked(resolve([*given, *decided]))))
    mistakes.tell()
    twins = {run.config.name: run.variant for run in planned}
    for run in planned:
        if twins[run.config.name] != run.variant:
            raise UserError(
                f"variants: expected names that differ in letters and digits, got {run.variant!r} and "
                f"{twins[run.config.name]!r}, both in the folder {run.config.name}: rename one"
            )
    return tuple(planned)


def _refuse_decided(given: Sequence[str]) -> None:
    decided = [text for text in given if text.partition("=")[0] in _DECIDED]
    if decided:
        raise UserError(f"{', '.join(decided)}: {', '.join(_DECIDED)} are decided by the comparison: leave them out")


def _checked(config: RunConfig) -> RunConfig:
    """The configuration, whose task and rewards are there."""
    configured_rewards(config, load_task(**config.task.model_dump()))
    return config


class _Mistakes:
    """What is wrong with the variants: a mistake that all of them have is told once."""

    def __init__(self, variants: int) -> None:
        self._variants = variants
        self._found: dict[str, dict[str, None]] = {}

    @contextmanager
    def of(self, variant: str) -> Iterator[None]:
        """Notes the mistakes of a variant that the block raises."""
        try:
            yield
        except UserError as error:
            for line in str(error).removeprefix("mistakes in the configuration:\n  ").split("\n  "):
                self._found.setdefault(line, {})[variant] = None

    def tell(self) -> None:
        """Raises UserError with all of them, if there are any."""
        lines = [
            line if len(names) == self._variants else f"variants {', '.join(names)}: {line}"
            for line, names in self._found.items()
        ]
        if lines:
            raise UserError("\n  ".join(["mistakes in the comparison:", *lines]))


def _refuse_other_runs(directory: Path, planned: Sequence[PlannedRun]) -> None:
    """Raises UserError for what is there already and is not of this comparison."""
    if (directory / "config.yaml").exists():
        raise UserError(f"{directory}: expected the folder of a comparison, found a run: choose another name")
    changed = []
    for run in planned:
        path = run.directory / "config.yaml"
        if path.is_file():
            then = load_config(RunConfig, [path], [])
            changed += [f"{run.directory}: {text}" for text in differences(then, run.config, _PLACE)]
    if changed:
        raise UserError(
            "\n  ".join([f"{directory}: expected runs with the settings of this comparison, got others:", *changed])
            + "\n  put the settings back as they were, choose another name, or remove these folders"
        )


# The runs


@dataclass
class _Process:
    """A run in a process of its own."""

    run: PlannedRun
    process: subprocess.Popen[bytes]
    shown: int  # steps that the bar counts already
    asked_to_stop: bool = False


def _run_all(
    planned: Sequence[PlannedRun], left: Sequence[PlannedRun], jobs: int, terminal: Terminal, stop: StopRequest
) -> tuple[str, ...]:
    """Makes the runs that are left, `jobs` at a time; gives the names of those that failed."""
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
                    _ask_to_stop(child)
                for child in [child for child in running if child.process.poll() is not None]:
                    running.remove(child)
                    failed += _ended(child, terminal, stop)
        finally:
            # Asked twice, or an error of our own: no process outlives this one.
            for child in running:
                child.process.terminate()
            for child in running:
                child.process.wait()
    return tuple(failed)


def _start(run: PlannedRun, advance: Advance) -> _Process:
    resume = bool(checkpoints(run.directory))
    if not resume:
        _clear(run.directory)
    run.directory.mkdir(parents=True, exist_ok=True)
    settings = [f"{key}={json.dumps(value)}" for key, value in run.config.model_dump(mode="json").items()]
    command = [sys.executable, "-m", "grouprl.cli", "train", *settings, *(["--resume"] if resume else [])]
    with (run.directory / "console.txt").open("ab" if resume else "wb") as console:
        process = _detached(command, console)
    steps = run.steps_made
    advance(steps, run.config.name)
    return _Process(run, process, steps)


def _detached(command: Sequence[str], console: IO[bytes]) -> subprocess.Popen[bytes]:
    # In a session of its own Ctrl-C does not reach it: the first one is passed on once, as SIGTERM.
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, start_new_session=True
    )


def _clear(directory: Path) -> None:
    """Removes a run that ended before its first checkpoint: there is nothing to go on from."""
    if directory.exists():
        os.close(lock_directory(directory))  # refused while a process has it
        shutil.rmtree(directory)


def _ask_to_stop(child: _Process) -> None:
    if not child.asked_to_stop:
        child.asked_to_stop = True
        child.process.terminate()


def _ended(child: _Process, terminal: Terminal, stop: StopRequest) -> list[str]:
    """Says how a run ended; its name when it failed.

    Raises:
        UserError: what the run itself says that the user can mend; it would be the same for the others.
    """
    run, code = child.run, child.process.returncode
    console = run.directory / "console.txt"
    if code == 0 and run.finished:
        terminal.say(f"{run.config.name}: {verdict(read_run(run.directory))}")
        return []
    if stop.asked and child.asked_to_stop:
        return []
    last = " ".join(console.read_text(encoding="utf-8", errors="replace").split("\n")[-3:]).strip()
    if code == 2:
        raise UserError(f"{run.directory}: {last.removeprefix('error: ')}")
    terminal.say(f"{run.config.name}: failed with code {code}: {last[-300:]} (all of it: {console})")
    return [run.config.name]


def _show(running: Sequence[_Process], advance: Advance) -> None:
    for child in running:
        newest = _newest(child.run.directory)
        step = int(newest.get("step", 0))
        figures = "".join(
            f" {label} {newest[name]:{form}}"
            for name, label, form in (("reward", "reward", ".2f"), ("accuracy", "correct", ".0%"))
            if isinstance(newest.get(name), float)
        )
        advance(step - child.shown, f"{child.run.config.name} {step}/{child.run.config.steps}{figures}")
        child.shown = step


def _newest(directory: Path) -> dict[str, Any]:
    """The metrics of the newest step, read from the end of the file; empty before the first one."""
    path = directory / "metrics.jsonl"
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        whole_lines = file.read().split(b"\n")[:-1]
    return dict(json.loads(whole_lines[-1])) if whole_lines else {}
