"""Starts, stops, resumes, forks, renames and deletes runs: each is a process of its own, which outlives the lab.

The routes are those that change something; `Guard` has let nobody else in.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from starlette.routing import Route

from grouprl.algorithms.named import NAMED
from grouprl.config.command_line import RECIPES
from grouprl.config.run import RunConfig, dump_config
from grouprl.files import read_end, read_needed
from grouprl.lab.answers import Body, changing, field_of
from grouprl.lab.forks import fork_directory
from grouprl.lab.report.notes import checked_notes
from grouprl.lab.runs import Runs
from grouprl.leaves import leaf
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory, lock_directory
from grouprl.rewards.resolve import REWARDS, STEP_REWARDS
from grouprl.run.process import start_run
from grouprl.tasks.named import TASKS
from grouprl.types import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_NAME_LINE = re.compile(r"^name: .*$", re.MULTILINE)
_CHANGE = re.compile(r"[a-z][a-z0-9_]*(\.[A-Za-z0-9_-]+)*=.*", re.DOTALL)
_LAST_STEP = 10**9
_MOST_CHANGES = 100  # a configuration has fewer keys
_START_SECONDS = 120.0  # in which a run that cannot start says so; asking a hub in vain takes half a minute
_SAID = 4000  # bytes of a process's last words


def recipes() -> list[dict[str, str]]:
    """The bundled recipes that train a policy, with what their first comment says of them."""
    rows = []
    for path in sorted(RECIPES.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        comment = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
        if set(yaml.safe_load(text)) <= set(RunConfig.model_fields):  # the others are of other verbs
            rows.append({"name": path.stem, "comment": comment, "text": text})
    return rows


def lists() -> dict[str, list[str]]:
    """The built-in names that some settings may have, by setting."""
    needing = ("jsonl", "reasoning_gym")  # a file, a generator
    return {
        "model.path": ["abacus", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"],
        "task.name": [name for name in TASKS if name not in needing],
        "algorithm": [*NAMED],
        "rewards": [*REWARDS, *STEP_REWARDS],
    }


class _Slow(UserError):
    """A run that has neither begun nor ended."""


class Processes:
    """What the lab may do to the runs below a root; may be asked from several threads."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._starting: set[Path] = set()
        self._stopping: set[tuple[Path, int]] = set()  # with the process that was asked

    def start(self, recipe: str, name: str, changes: Sequence[str]) -> str:
        """Starts a run of a bundled recipe; gives its id.

        Raises:
            UserError: no such recipe, a name that is taken or no name, a mistake in the changes, or the run ended at
                once.
        """
        file = RECIPES / f"{recipe}.yaml"
        names = [recipe_row["name"] for recipe_row in recipes()]
        if recipe not in names:
            raise UserError(f"expected one of the recipes {', '.join(names)}, got {recipe[:60]!r}")
        with self.new_folder(name) as folder:
            _checked([file], changes)
            self._spawn(folder, [str(file), *changes])
        return self._runs.identifier(folder)

    def stop(self, run: str) -> None:
        """Asks a run to finish its step, save and end (Ctrl-C).

        Raises:
            UserError: it is not running, was asked before, or does not run as a process of this machine and user.
        """
        folder = self._runs.folder(run)
        process = RunDirectory(folder).holder()
        if process is None:
            raise UserError(f"{folder.name} is not running")
        with self._lock:
            # Asked twice, a run ends at once and saves nothing.
            if (folder, process) in self._stopping:
                raise UserError(f"{folder.name} is stopping: it finishes its step and saves")
            try:
                _interrupt(process, RunDirectory(folder).lock)
            except (OSError, OverflowError):
                raise UserError(
                    f"{folder.name} runs in process {str(process)[:20]}, which this lab cannot stop: stop it there"
                ) from None
            self._stopping.add((folder, process))

    def resume(self, run: str, changes: Sequence[str]) -> str:
        """Resumes a stopped run; the settings may change that `--resume` allows to change.

        Raises:
            UserError: it is running, a mistake in the changes, or the run ended at once.
        """
        folder = self._runs.folder(run)
        with self.claimed(folder):
            if RunDirectory(folder).holder() is not None:
                raise UserError(f"{folder.name} is running")
            _checked([RunDirectory(folder).config], changes)
            self._spawn(folder, [*changes], resume=True)
        return run

    def fork(self, run: str, step: int, name: str, changes: Sequence[str]) -> str:
        """Makes a run that shares the steps up to a checkpoint and continues from there with changed settings.

        Raises:
            UserError: no such checkpoint, a name that is taken or no name, a mistake in the changes, or the new run
                ended at once; nothing is left.
        """
        from grouprl.run.machine import with_dtype  # loads transformers, for 4 seconds

        source = self._runs.folder(run)
        if not 0 <= step <= _LAST_STEP:
            raise UserError(f"step: expected 0 to {_LAST_STEP}, got {str(step)[:20]}")
        with self.new_folder(name) as target:
            location = [f"name={target.name}", f"runs_dir={json_text(str(target.parent))}"]
            config = with_dtype(_checked([RunDirectory(source).config], changes, location))
            fork_directory(source, target, step, config, dump_config(config))
            try:
                self._spawn(target, [], resume=True)
            except _Slow:
                raise
            except UserError:
                shutil.rmtree(target)
                raise
        return self._runs.identifier(target)

    @contextmanager
    def new_folder(self, name: str) -> Iterator[Path]:
        """A folder below the root that is not there, and that nobody else makes meanwhile.

        Raises:
            UserError: no name, or one that is taken.
        """
        if not _NAME.fullmatch(name):
            raise UserError(f"expected a name of letters, digits, '.', '_' and '-', at most 200, got {name[:60]!r}")
        folder = self._runs.root / name
        with self.claimed(folder):
            if folder.exists() or folder.is_symlink():
                raise UserError(f"{name}: a folder of this name exists, choose another name")
            yield folder

    @contextmanager
    def claimed(self, folder: Path) -> Iterator[None]:
        """Nobody else who asks the lab starts anything there meanwhile."""
        with self._lock:
            if folder in self._starting:
                raise UserError(f"{folder.name} is starting")
            self._starting.add(folder)
        try:
            yield
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from error
        finally:
            with self._lock:
                self._starting.remove(folder)

    def _spawn(self, folder: Path, settings: Sequence[str], *, resume: bool = False) -> None:
        """Starts `grouprl train`, and waits until it has its directory or has ended."""
        log = self._runs.root / ".lab" / f"{self._runs.identifier(folder)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.parent.is_symlink():
            raise UserError(f"{log.parent}: expected a folder, got a link: remove it")
        begins = log.stat().st_size if log.exists() else 0
        process = start_run(RunDirectory(folder), settings, log, resume=resume)
        threading.Thread(target=process.wait, daemon=True).start()  # or it would stay as a zombie
        ends, run = time.monotonic() + _START_SECONDS, RunDirectory(folder)
        # It takes the lock first; without settings it is no run yet.
        while run.holder() != process.pid or not run.exists:
            if process.poll() is not None:
                words_left = read_end(log, min(_SAID, log.stat().st_size - begins)).decode("utf-8", "replace").strip()
                raise UserError(words_left or f"the run ended at its start, with code {process.returncode}")
            if time.monotonic() > ends:
                raise _Slow(f"{folder.name} is still starting after {_START_SECONDS:g} s: see {log}")
            time.sleep(0.05)


def _interrupt(process: int, lock: Path) -> None:
    """SIGINT to the process that has the lock open: the number in the file is a text, which may be wrong or old.

    Raises:
        OSError: there is no such process, or it has other files open.
    """
    if not hasattr(os, "pidfd_open"):  # neither has macOS a list of open files to compare with
        os.kill(process, signal.SIGINT)
        return
    handle = os.pidfd_open(process)
    try:
        wanted = lock.stat()
        if not any(os.path.samestat(wanted, status) for status in _open_files(process)):
            raise ProcessLookupError
        signal.pidfd_send_signal(handle, signal.SIGINT)
    finally:
        os.close(handle)


def _open_files(process: int) -> Iterator[os.stat_result]:
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            yield entry.stat()
        except FileNotFoundError:  # closed meanwhile
            continue


def _checked(files: Sequence[Path], changes: Sequence[str], own_names: Sequence[str] = ()) -> RunConfig:
    wrong = [change for change in changes if not _CHANGE.fullmatch(change)]
    if wrong:
        raise UserError(f"expected changes such as rollout.group_size=16, got {wrong[0][:60]!r}")
    moved = [change for change in changes if change.partition("=")[0] in ("name", "runs_dir")]
    if moved:
        raise UserError(f"{moved[0][:60]}: the lab sets the folder by the name; use the field Name")
    config: RunConfig = leaf("received.trust").trusted_config(files, [*changes, *own_names])
    return config


# The routes


def process_routes(processes: Processes) -> list[Route]:
    """Start, stop, resume and fork."""

    def start(_: str, body: Body) -> dict[str, Any]:
        recipe, name = field_of(body, "recipe", "a text"), field_of(body, "name", "a text")
        return {"id": processes.start(recipe, name, _changes(body))}

    def stop(run: str, _: Body) -> dict[str, Any]:
        processes.stop(run)
        return {"id": run}

    def resume(run: str, body: Body) -> dict[str, Any]:
        return {"id": processes.resume(run, _changes(body))}

    def fork(run: str, body: Body) -> dict[str, Any]:
        step, name = field_of(body, "step", "a whole number"), field_of(body, "name", "a text")
        return {"id": processes.fork(run, step, name, _changes(body))}

    return [
        Route("/api/runs", changing(start), methods=["POST"]),
        Route("/api/runs/{run}/stop", changing(stop), methods=["POST"]),
        Route("/api/runs/{run}/resume", changing(resume), methods=["POST"]),
        Route("/api/runs/{run}/fork", changing(fork), methods=["POST"]),
    ]


def _changes(body: Body) -> list[str]:
    changes = field_of({"changes": [], **body}, "changes", "a list of texts")
    if not all(isinstance(change, str) for change in changes):
        raise UserError(f"changes: expected a list of texts, got {changes!r:.60}")
    if len(changes) > _MOST_CHANGES:
        raise UserError(f"changes: expected at most {_MOST_CHANGES}, got {len(changes)}: write them into a file")
    return [change.strip() for change in changes if change.strip()]


# What users keep of their runs: tags, a note, a name, whether they stay


def keeping_routes(runs: Runs, processes: Processes) -> list[Route]:
    """Write notes, rename, delete."""

    def write(run: str, body: Body) -> dict[str, Any]:
        notes = checked_notes(body.get("tags"), body.get("note"), body.get("archived"))
        atomic_write_text(RunDirectory(runs.folder(run)).notes, json_text(asdict(notes)) + "\n")
        return {"id": run}

    def rename(run: str, body: Body) -> dict[str, Any]:
        with processes.new_folder(field_of(body, "name", "a text")) as target, _ours(runs, processes, run) as folder:
            config = RunDirectory(folder).config
            # A resume goes by the folder; the line is for people.
            text = _NAME_LINE.sub(f"name: {json_text(target.name)}", read_needed(config, "expected settings"), count=1)
            atomic_write_text(config, text)
            folder.rename(target)
        return {"id": runs.identifier(target)}

    def delete(run: str, body: Body) -> dict[str, Any]:
        with _ours(runs, processes, run) as folder:
            if field_of(body, "name", "a text") != folder.name:
                raise UserError(f"expected the run's name, {folder.name}, to delete it, got {body['name'][:60]!r}")
            leaving = runs.root / ".lab" / f"deleted-{folder.name}-{os.getpid()}"
            leaving.parent.mkdir(exist_ok=True)
            # A run that is half gone must not be listed.
            folder.rename(leaving)
        shutil.rmtree(leaving)
        return {"id": run}

    return [
        Route(f"/api/runs/{{run}}/{name}", changing(act), methods=["POST"])
        for name, act in (("notes", write), ("rename", rename), ("delete", delete))
    ]


@contextmanager
def _ours(runs: Runs, processes: Processes, run: str) -> Iterator[Path]:
    """The folder of a run that no process writes, and none starts to, as long as the block lasts.

    Raises:
        UserError: it is running, being started, or part of a comparison.
    """
    folder = runs.folder(run)
    if folder.parent != runs.root:
        raise UserError(f"{run}: expected a single run, got a run of the comparison {folder.parent.name}")
    with processes.claimed(folder):
        handle = lock_directory(folder)
        try:
            yield folder
        finally:
            os.close(handle)
