"""The layout of a run directory: file names, checkpoint folders, and the status of a run.

The only module that knows these facts. docs/run_directory.md describes what is inside the files.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from grouprl.files import is_number, parse_object, read_end, read_json, refuse_file
from grouprl.record.files import open_to_write, remove
from grouprl.types import UserError, nearest_name

Status = Literal["running", "finished", "stopped", "failed"]

# The files of a run with their descriptions. A new run never overwrites a file of such a name.
WRITTEN_BY_A_RUN: Mapping[str, str] = {
    "config.yaml": "the configuration, complete",
    "metrics.jsonl": "one line of numbers per step",
    "evaluations.jsonl": "held-out results while training",
    "held_out.jsonl": "held-out results of each problem",
    "rollouts.sqlite": "every completion with its rewards, tokens and log-probs",
    "examples.json": "a few held-out problems and their completions",
    "rewards.json": "the weight of each reward, and which rewards are process rewards",
    "code.json": "SHA-256 of the files with code, of the tokenizer and of the chat template",
    "warnings.jsonl": "what went wrong in a step, and what to change",
    "summary.json": "the results of the run",
    "token_branches": "what the reward would have been with other tokens",
    "report.html": "the report",
    "trackers": "the run's ids in trackers, and the files of tensorboard and wandb",
    "checkpoints": "models in Hugging Face layout, and the state for a resume",
}
_LOCK = "run.lock"
_SIDE_FILES = ("-wal", "-shm", "-journal")  # files that SQLite makes beside a database
_CHECKPOINT = re.compile(r"step-([0-9]{1,15})")
_MOST_ENTRIES = 200_000  # files and folders in a run
_READ = (".yaml", ".json", ".jsonl", ".jinja")  # suffixes of files that are read as a whole
_TAIL_BYTES = 1 << 14  # the last line of metrics.jsonl is far shorter
_MOST_NAMED = 8  # runs in an error
COURSE_STEPS = (1, 5, 10, 60)  # after which held-out completions are recorded, if there are that many steps


class Checkpoint:
    """The folder of one checkpoint: a model in Hugging Face layout, and the state of the run in `trainer/`."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        self.step = step
        self.trainer = path / "trainer"  # the folder of the files that a resume needs and the model does not hold
        self.state = self.trainer / "state.json"  # the state of the run after `step`
        self.ahead = self.trainer / "ahead.jsonl"  # with cluster.max_staleness: the groups of the next steps

    @property
    def is_complete(self) -> bool:
        """Whether a run can be resumed from it; a folder without `trainer/` has a model alone."""
        return os.path.isfile(self.state)

    def tensors(self, name: str) -> Path:
        """The file of the tensors `name`, such as "optimizer"."""
        return self.trainer / f"{name}.safetensors"


class RunDirectory:
    """The paths of a run's files. The directory need not exist.

    >>> RunDirectory(Path("runs/demo")).checkpoint(100).state.as_posix()
    'runs/demo/checkpoints/step-000100/trainer/state.json'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path).expanduser()
        self.config = path / "config.yaml"  # the resolved configuration; a folder with this file is a run directory
        self.metrics = path / "metrics.jsonl"  # one line of metrics for each step
        self.evaluations = path / "evaluations.jsonl"  # one line for each evaluation on held-out problems
        self.held_out = path / "held_out.jsonl"  # one line for each evaluation, with the results of each problem
        self.warnings = path / "warnings.jsonl"  # one line for each warning, update that was not finite, and explosion
        # every line of these has a `step`
        self.line_files = self.metrics, self.evaluations, self.held_out, self.warnings
        self.rollouts = path / "rollouts.sqlite"  # the SQLite database of completions
        self.rollout_side_files = tuple(path / f"rollouts.sqlite{suffix}" for suffix in _SIDE_FILES)
        self.parquet = path / "rollouts.parquet"  # the default file of an export
        self.examples = path / "examples.json"  # a few held-out problems, with completions from before and after
        self.rewards = path / "rewards.json"  # the weights of the rewards
        self.code = path / "code.json"  # the digests of what else determines a run: see `grouprl.received.trust`
        self.summary = path / "summary.json"  # the results of the run, written when it ends
        self.report = path / "report.html"  # the page of the run with its data inside
        self.published = path / "published"  # the two newest versions of the weights, for samplers in other processes
        self.forked = path / "forked.json"  # the run and the step from which this run was forked
        self.notes = path / "notes.json"  # what its user wrote about it on the page
        self.pairs = path / "pairs.jsonl"  # the preference pairs that a supervised run learned from
        self.model = path / "model"  # the model of a supervised run, in Hugging Face layout
        self.trackers = path / "trackers"  # the files of trackers
        self.console = path / "console.txt"  # the output of a run's process
        self.lock = path / _LOCK  # locked by the process that writes the directory; see `lock_directory`

    @property
    def tracker_ids(self) -> Path:
        """The id of the run in each tracker, by which a resume continues it."""
        return self.trackers / "ids.json"

    @property
    def exists(self) -> bool:
        """Whether this is the directory of a run."""
        return os.path.isfile(self.config)  # Path.is_file raises for a folder of another user

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint after a step, which need not exist."""
        return Checkpoint(self.path / "checkpoints" / f"step-{step:06d}", step)

    def branches(self, step: int, group: int, completion: int) -> Path:
        """The file of a completion's branches, which need not exist."""
        return self.path / "token_branches" / f"step-{step:06d}-{group}-{completion}.json"

    def set_aside_after(self, step: int) -> tuple[Path, ...]:
        """Renames the checkpoints after `step` to NAME.aside, so that none is taken for one of the steps to come.

        Removes what a kill left of a save (`.tmp`) or a removal (`.old`).
        """
        for left in (*self.path.glob("checkpoints/step-*.tmp"), *self.path.glob("checkpoints/step-*.old")):
            remove(left)
        later = [checkpoint.path for checkpoint in self.saved_models() if checkpoint.step > step]
        for path in later:
            aside = path.with_name(f"{path.name}.aside")
            remove(aside)
            path.rename(aside)
        return tuple(later)

    def saved_models(self) -> tuple[Checkpoint, ...]:
        """Every checkpoint folder, oldest first, resumable or not; an incomplete one has another name (`.tmp`)."""
        names = [path.name for path in (self.path / "checkpoints").glob("step-*")]
        steps = sorted({int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match})
        # Not step-2, a copy that somebody made: a run saves step-000002.
        return tuple(saved for saved in map(self.checkpoint, steps) if saved.path.name in names)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The checkpoints that a run can be resumed from, oldest first."""
        return tuple(checkpoint for checkpoint in self.saved_models() if checkpoint.is_complete)

    def newest_metrics(self) -> dict[str, Any]:
        """Reads the metrics of the newest step from the end of the file; empty before the first step."""
        whole_lines = read_end(self.metrics, _TAIL_BYTES).split(b"\n")[:-1]
        return parse_object(whole_lines[-1], self.metrics) if whole_lines else {}

    def is_finished(self, steps: int | None) -> bool:
        """Whether the run has made all its steps and the evaluation after them: see the function `is_finished`."""
        return is_finished(read_json(self.summary), steps)

    def holder(self) -> int | None:
        """The id of the process that writes the directory now, -1 if unknown; None when no process does."""
        try:
            handle = os.open(self.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # a pipe could block forever
        except OSError:
            return None
        try:
            if _locked(handle, fcntl.LOCK_SH):
                return None
            text = os.pread(handle, 32, 0).decode("ascii", "replace")
            return int(text) if text.isdecimal() else -1
        finally:
            os.close(handle)

    def status(self, summary: Mapping[str, Any], steps: int | None) -> Status:
        """The status of the run.

        Args:
            summary: the contents of summary.json; empty when there is none.
            steps: the steps of its configuration; None = unknown.
        """
        if self.holder() is not None:
            return "running"
        if has_failed(summary):
            return "failed"
        return "finished" if is_finished(summary, steps) else "stopped"


def refuse_links(directory: Path) -> None:
    """Checks that the directory of a run holds files and folders alone, each no larger than its kind may be.

    It can come from anybody. A link may lead to another place inside it, and the directory itself may be a link. Below
    the folder of a tracker links to files are the tracker's own.

    Raises:
        UserError: a link leads out of the directory, there is a pipe, a socket or a device, or a file is too large.
    """
    root = directory.resolve()
    waiting, left = [directory], _MOST_ENTRIES
    while waiting:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(waiting.pop()) as entries:  # a run goes on
            for entry in entries:
                path, left = Path(entry.path), left - 1
                if left < 0:
                    raise UserError(f"{directory}: expected at most {_MOST_ENTRIES} files in a run, got more")
                of_tracker = "trackers" in path.relative_to(directory).parts[:-2]
                if entry.is_symlink():
                    if not (of_tracker and not entry.is_dir()):
                        _refuse_link(path, root)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif not of_tracker:
                    with suppress(FileNotFoundError):
                        refuse_file(path, entry.stat(follow_symlinks=False), None if path.suffix in _READ else 1 << 62)


def _refuse_link(path: Path, root: Path) -> None:
    with suppress(OSError, RuntimeError):  # RuntimeError: a link to itself
        with suppress(FileNotFoundError):
            os.stat(path)
        if path.resolve().is_relative_to(root):
            return
    raise UserError(
        f"{path}: expected a file or folder of the run, found a link that leads out of it ({os.readlink(path)}): "
        "replace it by a copy, or remove it; the whole run may lie elsewhere, with a link to it here"
    )


def is_finished(summary: Mapping[str, Any], steps: int | None) -> bool:
    """Whether a summary belongs to a run that made all its steps and the evaluation after them.

    Args:
        summary: the contents of summary.json; empty when there is none.
        steps: the steps of the configuration, which a resume may raise; None = unknown.
    """
    steps_made = summary.get("steps")
    return summary.get("after") is not None and is_number(steps_made) and (steps is None or steps_made >= steps)


def has_failed(summary: Mapping[str, Any]) -> bool:
    """Whether a summary says why its run failed; a resume clears it."""
    return summary.get("state") == "failed"


def run_of_checkpoint(checkpoint: Path) -> RunDirectory | None:
    """Returns the run that contains a checkpoint folder; None when there is none."""
    folder = checkpoint.resolve()
    run = RunDirectory(folder.parent.parent)
    # A hub id such as owner/name is no folder, and must not bring in the config.yaml of the current one.
    return run if run.exists and folder == run.checkpoint(0).path.with_name(folder.name) and folder.is_dir() else None


def is_config_of_a_run(file: Path) -> bool:
    """Whether a run wrote this configuration file: another file of the run is beside it."""
    run = RunDirectory(file.parent)
    return file.name == run.config.name and any(
        (run.path / name).exists() for name in {*WRITTEN_BY_A_RUN} - {file.name}
    )


def lock_directory(directory: Path) -> int:
    """Locks the directory of a run or a comparison for this process; closing the returned handle releases it.

    Raises:
        UserError: another process has the directory; the error names it.
    """
    # The kernel releases the lock when the process ends, in any way; the file itself may stay.
    refuse_links(directory)
    handle = open_to_write(directory / _LOCK, os.O_RDWR)
    for attempt in range(5):
        # A process that checks whether a run is running has the lock for some microseconds: try again.
        time.sleep(0.01 * attempt)
        if _locked(handle, fcntl.LOCK_EX):
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            return handle
    holder = os.pread(handle, 32, 0).decode() or "unknown"
    os.close(handle)
    raise UserError(
        f"{directory}: run directory in use by process {holder}; wait for it, stop it, or choose another name"
    )


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# The place that a user names: a run, a checkpoint, a model


def model_at(name: str) -> str:
    """The model that a user names: of a run its newest checkpoint or its trained model, any other name as it is.

    Raises:
        UserError: the run has saved no model.
    """
    path = Path(name).expanduser()
    run = RunDirectory(path)
    if not run.exists:
        return str(path) if name.startswith("~") else name
    refuse_links(run.path)
    saved = run.saved_models()
    if saved:
        return str(saved[-1].path)
    if run.model.is_dir():  # of sft, dpo and reward-model
        return str(run.model)
    raise UserError(f"{name}: expected a run with a checkpoint, got one without: continue it with --resume")


def run_at(name_or_path: str | Path) -> Path:
    """The run directory that a user names, by its folder or by one of its checkpoints.

    Raises:
        UserError: there is none; the error names the nearest run.
    """
    target = Path(name_or_path).expanduser()
    if RunDirectory(target).exists:
        return target
    run = run_of_checkpoint(target)
    if run is not None:
        return run.path
    runs: dict[str, Path] = {}
    for parent in (Path("runs"), target.parent):
        with suppress(OSError):
            runs |= {path.name: path for path in sorted(parent.iterdir()) if RunDirectory(path).exists}
    name = nearest_name(target.name, runs)
    such = ", ".join(sorted(map(str, runs.values()))[:_MOST_NAMED]) or "runs/NAME"
    remedy = f"did you mean {runs[name]}?" if name else f"give the folder that a training run wrote, such as {such}"
    raise UserError(f"{name_or_path}: expected a run directory (one with a config.yaml), found none: {remedy}")
