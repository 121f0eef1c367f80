"""Plans and makes the runs of several variants on the same seeds; each is an ordinary run, made by a separate process.

A variant may also be stages: commands in order, each a run with its own folder, which begins when the one before it is
finished. All errors are reported before the first run starts, except for what a stage finds wrong in an earlier one.

Separate processes are necessary because peak memory is measured per process: a shared process would report the peak of
earlier runs too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grouprl.config.checks import check_sections
from grouprl.config.command_line import config_of
from grouprl.config.own_algorithm import is_in_file
from grouprl.config.run import RunConfig, load_config
from grouprl.leaves import LeafNames
from grouprl.record.files import atomic_write_text, json_text, remove
from grouprl.record.layout import RunDirectory, lock_directory, model_at
from grouprl.record.read import read_run
from grouprl.rewards.configured import configured_rewards
from grouprl.run.code import refuse_changed_algorithm
from grouprl.run.machine import with_dtype
from grouprl.run.process import StopRequest, start_run, stop_on_signal
from grouprl.run.resume import differences, with_run_dtype
from grouprl.tasks import load_task
from grouprl.tools.compare.read import COMPARISON_FILE, read_comparison, run_folder
from grouprl.tools.compare.report import comparison_verdict, write_comparison
from grouprl.tools.compare.settings import STAGE, CompareConfig
from grouprl.trainer.terminal import Terminal
from grouprl.trainer.verdict import verdict
from grouprl.types import UserError, counted

Resolve = Callable[[Sequence[str]], RunConfig]
"""Makes a configuration from the arguments of `grouprl train`: files, recipes, changes such as steps=10."""

_PLACE = ("name", "runs_dir")  # settings that locate a run and do not affect its results
_DECIDED = (*_PLACE, "seed", "out")  # settings that the comparison decides
_SUPERVISED = LeafNames("supervised", {})  # configurations by verb

POLL_SECONDS = 0.3
_END_SECONDS = 600.0  # a run that is asked to stop finishes its step and saves


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison, or one stage of it."""

    variant: str
    config: RunConfig | Any  # that of a run, or of supervised training
    verb: str = "train"
    needs: PlannedRun | None = None  # the stage before it

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.config.runs_dir, self.config.name)

    @property
    def finished(self) -> bool:
        """Whether the run has made its last step and the evaluation after it, or its model."""
        files = RunDirectory(self.directory)
        return files.is_finished(self.steps) if isinstance(self.config, RunConfig) else files.model.is_dir()

    @property
    def steps(self) -> int:
        """The steps of training with rewards."""
        return self.config.steps if isinstance(self.config, RunConfig) else 0

    @property
    def newest(self) -> dict[str, Any]:
        """The metrics of the newest step; empty before the first step."""
        return RunDirectory(self.directory).newest_metrics()


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
    if RunDirectory(directory).exists:
        raise UserError(f"{directory}: expected the folder of a comparison, found a run: choose another name")
    changed = []
    for run in planned:
        files = RunDirectory(run.directory)
        if files.exists:
            if isinstance(run.config, RunConfig):
                refuse_changed_algorithm(run.directory, run.config.algorithm.name)
            then = load_config(type(run.config), [files.config], [])
            changed += [f"{run.directory}: {text}" for text in differences(then, run.config, _PLACE)]
    if changed:
        raise UserError(
            "\n  ".join([f"{directory}: expected runs with the settings of this comparison, got others:", *changed])
            + "\n  restore the settings, choose another name, or remove these folders"
        )
    directory.mkdir(parents=True, exist_ok=True)
    lock = lock_directory(directory)
    try:
        atomic_write_text(directory / COMPARISON_FILE, json_text(config.model_dump(mode="json"), indent=2) + "\n")
        left = [run for run in planned if not run.finished]
        terminal.say(f"{directory}: {counted(len(planned), 'run')}, {len(planned) - len(left)} of them finished.")
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
        terminal.say(f"Stopped: {counted(len(unfinished), 'run')} unfinished. Run this command again to continue.")
    return ComparisonResult(directory, not unfinished, failed)


# The plan


def planned_runs(config: CompareConfig, resolve: Resolve) -> tuple[PlannedRun, ...]:
    """Plans all runs, seed by seed, so that a comparison that is stopped early is balanced; writes nothing.

    Raises:
        UserError: lists the errors of all variants, each once.
    """
    planned: list[PlannedRun] = []
    errors: dict[str, dict[str, None]] = {}  # the variants that have each error
    folder = str(Path(config.runs_dir) / config.name)
    for seed in config.seeds:
        for variant in config.names:
            before: list[PlannedRun] = []
            for name, verb, settings in _commands(config, variant, seed):
                with _collected(errors, variant):
                    if wrong := [text for text in settings if text.partition("=")[0] in _DECIDED]:
                        names = ", ".join(_DECIDED)
                        raise UserError(f"{', '.join(wrong)}: the comparison decides {names}: remove them")
                decided = [f"name={name}", f"seed={seed}", f"runs_dir={json.dumps(folder)}"]
                needs = before[-1] if before else None
                ready = needs is None or needs.finished
                with _collected(errors, variant):
                    run_config = _configured(verb, [*settings, *decided], resolve if ready else None)
                    before.append(PlannedRun(variant, run_config, verb, needs))
            planned += before
    if errors:
        lines = [
            line if len(names) == len(config.names) else f"variants {', '.join(names)}: {line}"
            for line, names in errors.items()
        ]
        raise UserError("\n  ".join(["errors in the comparison:", *lines]))
    twins = {run.config.name: run.variant for run in planned}
    for run in planned:
        if twins[run.config.name] != run.variant:
            raise UserError(
                f"variants: expected names that differ in letters and digits, got {run.variant!r} and "
                f"{twins[run.config.name]!r}, both in the folder {run.config.name}: rename one"
            )
    return tuple(planned)


def _commands(config: CompareConfig, variant: str, seed: int) -> Iterator[tuple[str, str, list[str]]]:
    """The folder, the verb and the settings of each command of a variant."""
    common = [*config.base, *config.settings]
    if variant in config.variants:
        yield run_folder(variant, seed), "train", [*common, *config.variants[variant]]
    stages = [item for stage in config.stages.get(variant, ()) for item in stage.items()]
    names = [run_folder(variant, seed, f"{number}-{verb}") for number, (verb, _) in enumerate(stages, 1)]
    places = [str(Path(config.runs_dir) / config.name / name) for name in names]
    for name, (verb, changes) in zip(names, stages, strict=True):
        settings = [STAGE.sub(lambda match: places[int(match[1]) - 1], text) for text in changes]
        yield name, verb, [*(common if verb == "train" else ()), *settings]


def _configured(verb: str, settings: Sequence[str], resolve: Resolve | None) -> Any:
    """The configuration of a command; without `resolve` as long as the models that it names are not there."""
    if verb != "train":
        supervised = config_of(_SUPERVISED[verb], [*settings, "out=null"])
        path = model_at(supervised.model.path) if resolve else supervised.model.path
        return with_dtype(supervised.model_copy(update={"model": supervised.model.model_copy(update={"path": path})}))
    run = with_run_dtype(resolve(settings), resume=True) if resolve else config_of(RunConfig, settings)
    if resolve or not is_in_file(run.algorithm.name):
        check_sections(run)
    if resolve:
        configured_rewards(run, load_task(**run.task.model_dump()))
    return run


@contextmanager
def _collected(errors: dict[str, dict[str, None]], variant: str) -> Iterator[None]:
    """Adds the errors of a configuration that the block raises: their texts, with the variants that have each."""
    try:
        yield
    except UserError as error:
        for line in str(error).removeprefix("errors in the configuration:\n  ").split("\n  "):
            errors.setdefault(line, {})[variant] = None


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
    waiting, running, failed = list(left), list[_Process](), list[str]()
    with terminal.progress("comparing", sum(run.steps for run in planned)) as advance:
        advance(sum(run.steps for run in planned if run not in left))
        try:
            while running or (waiting and not stop.asked):
                ready = [
                    run
                    for run in waiting
                    if (run.needs is None or run.needs.finished) and all(run.needs != other.run for other in running)
                ]
                if not running and not ready:  # what they need has failed
                    return (*failed, *(run.config.name for run in waiting))
                for run in ready[: 0 if stop.asked else jobs - len(running)]:
                    waiting.remove(run)
                    files = RunDirectory(run.directory)
                    resume = files.exists and run.verb == "train"
                    if files.exists and not resume:
                        # Supervised training has no checkpoints: from the start it makes the same model.
                        remove(run.directory)
                    run.directory.mkdir(parents=True, exist_ok=True)
                    settings = [
                        f"{key}={json.dumps(value)}" for key, value in run.config.model_dump(mode="json").items()
                    ]
                    process = start_run(files, settings, files.console, verb=run.verb, resume=resume)
                    steps = min(run.newest.get("step", 0), run.steps)
                    advance(steps, run.config.name)
                    running.append(_Process(run, process, steps))
                time.sleep(POLL_SECONDS)
                for active in running:
                    newest = active.run.newest
                    made_steps = min(int(newest.get("step", 0)), active.run.steps)
                    metrics = "".join(
                        f" {label} {newest[name]:{form}}"
                        for name, label, form in (("reward", "reward", ".2f"), ("accuracy", "correct", ".0%"))
                        if isinstance(newest.get(name), float)
                    )
                    advance(
                        made_steps - active.shown, f"{active.run.config.name} {made_steps}/{active.run.steps}{metrics}"
                    )
                    active.shown = made_steps
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


def _ended(child: _Process, terminal: Terminal, stop: StopRequest) -> list[str]:
    """Reports how a run ended; returns its name if it failed.

    Raises:
        UserError: the run ended with a user error before its first step, which the other runs would have too.
    """
    run, code = child.run, child.process.returncode
    console = RunDirectory(run.directory).console
    if code == 0 and run.finished:
        outcome = verdict(read_run(run.directory)) if run.steps else f"made {RunDirectory(run.directory).model}."
        terminal.say(f"{run.config.name}: {outcome}")
        return []
    if stop.asked and child.asked_to_stop:
        return []
    last = " ".join(console.read_text(encoding="utf-8", errors="replace").split("\n")[-3:]).strip()
    if code == 2 and not run.newest:
        raise UserError(f"{run.directory}: {last.rpartition('error: ')[2]}")
    terminal.say(f"{run.config.name}: failed with code {code}: {last[-300:]} (all of it: {console})")
    return [run.config.name]
