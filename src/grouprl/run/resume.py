"""Decides how a run is resumed: what may change, the checkpoint to continue from, and its record, which it opens."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grouprl.config.algorithm import OWN, all_options, own_parts
from grouprl.config.own_code import own_code
from grouprl.config.run import RunConfig, dump_config, load_config
from grouprl.files import read_json
from grouprl.ranks import Ranks, note_begun, was_begun
from grouprl.record.files import json_text
from grouprl.record.layout import Checkpoint, RunDirectory, lock_directory, refuse_links
from grouprl.record.read import incomplete_steps, read_examples, read_json_lines, read_summary
from grouprl.record.write import NoRecord, RunRecord
from grouprl.run.assemble import RunParts
from grouprl.run.checkpoint import TrainerState, prune_checkpoints, read_state
from grouprl.run.code import code_of, refuse_changed_code, refuse_changes
from grouprl.run.display import Display, RunEnd
from grouprl.run.machine import with_dtype
from grouprl.tasks import Task
from grouprl.types import UserError

# All other settings determine problems, completions or updates.
_FREE = (
    *("name", "runs_dir", "steps", "model.threads", "rollout.scoring", "evaluation", "checkpoint"),
    *("trackers.names", "trackers.project", "trackers.completions_every"),
    *("rollout.engine.address", "rollout.engine.token_env", "rollout.engine.seconds"),
    *("distributed.shard", "distributed.seconds", "cluster.backend", "cluster.address", "cluster.samplers"),
    *("cluster.scorers", "cluster.cpus", "cluster.gpus", "cluster.seconds"),
)


def resumes(directory: Path, *, asked: bool) -> bool:
    """Whether to continue a run: when the user asked, or when torchrun starts the ranks of the run again."""
    return asked or (was_begun(directory) and RunDirectory(directory).exists)


def saved_path(directory: Path) -> Path:
    """Returns the configuration file with which a run was started or last resumed.

    Raises:
        UserError: there is no run.
    """
    run = RunDirectory(directory)
    if not run.exists:
        raise UserError(f"{directory}: expected a run to resume, found no config.yaml: check name and runs_dir")
    refuse_links(directory)
    return run.config


def with_run_dtype(config: RunConfig, *, resume: bool) -> RunConfig:
    """Replaces model.dtype=auto by the machine's dtype. A run that is resumed keeps the dtype that it began with."""
    directory = Path(config.runs_dir) / config.name
    keeps_dtype = resume and config.model.dtype == "auto" and RunDirectory(directory).exists
    return with_dtype(config, _saved_config(directory, config).model.dtype if keeps_dtype else None)


def check_resumable(directory: Path, config: RunConfig) -> None:
    """Checks that the run in `directory` can be resumed with this configuration.

    Raises:
        UserError: earlier steps depend on a setting that differs.
    """
    saved = _saved_config(directory, config)
    # A learning rate that follows the run to its end depends on where that is.
    free = [name for name in _FREE if name != "steps" or not saved.learner.follows_the_end]
    changed = differences(saved, config, free)
    if changed:
        why = ""
        if saved.learner.follows_the_end and any(difference.startswith("steps:") for difference in changed):
            key = "warmup_steps" if saved.learner.schedule == "constant" else "schedule"
            value = getattr(saved.learner, key)
            why = f" (with learner.{key}={value} the learning rate of each step depends on steps)"
        raise UserError(
            f"resume: expected the settings that {directory} started with, got {'; '.join(changed)}{why}: "
            f"restore them (only {', '.join(free)} may change), or start a new run under another name"
        )


def _saved_config(directory: Path, config: RunConfig) -> RunConfig:
    in_memory = {config.algorithm.name: config.algorithm}  # a program may have made it
    return load_config(RunConfig, [saved_path(directory)], [], context=in_memory)


def choose_checkpoint(
    directory: Path, config: RunConfig, *, step: int | None, announce: Callable[[str], None]
) -> tuple[Checkpoint, TrainerState] | None:
    """Chooses the checkpoint to continue from; None = the start of the run.

    Args:
        directory: the run, locked by this process.
        config: the configuration to resume with.
        step: the step of the checkpoint, 0 = the start; None = the newest good one.
        announce: gets a sentence for each checkpoint that is skipped.

    Raises:
        UserError: there is no such checkpoint, none is good, or the record lacks a step that it depends on.
    """
    saved = RunDirectory(directory).saved_models()
    if step is None:
        chosen = newest_good(directory, announce=announce)
        if chosen is None:
            every = _saved_config(directory, config).checkpoint.every
            last = RunDirectory(directory).newest_metrics().get("step", 0)
            if every and last > every:
                raise UserError(
                    f"resume: expected a checkpoint in {directory}, which records {last} steps and saved every "
                    f"{every}, found none: restore the folder checkpoints, or repeat all steps with --resume --step 0"
                )
            announce("The run ended before its first checkpoint: it starts again from step 0.")
            return None
    elif step == 0:
        return None
    else:
        named = [checkpoint for checkpoint in saved if checkpoint.step == step]
        if not named:
            have = ", ".join(str(checkpoint.step) for checkpoint in saved)
            raise UserError(f"--step: expected one of the checkpoints {have or '(none)'}, or 0, got {step}")
        chosen = named[0], read_state(named[0])
    missing = _missing_steps(directory, config, chosen[0].step)
    if missing:
        back = max((checkpoint.step for checkpoint in saved if checkpoint.step < missing[0]), default=0)
        raise UserError(
            f"resume: expected a record of every step up to {chosen[0].step}, the checkpoint to continue from; "
            f"{directory} lacks all or a part of {_ranges(missing)}: restore metrics.jsonl, evaluations.jsonl and "
            f"rollouts.sqlite, or continue after the last whole step with a checkpoint: --resume --step {back} (later "
            "steps run again)"
        )
    return chosen


def locked_checkpoint(
    stack: ExitStack, config: RunConfig, ranks: Ranks, step: int | None, announce: Callable[[str], None]
) -> tuple[int | None, int | None, tuple[Checkpoint, TrainerState] | None]:
    """Locks a run until `stack` ends, and chooses the checkpoint to continue from.

    Returns:
        The lock of the leading rank; the steps of a run that has made them all, else None; the checkpoint.
    """
    directory, lock = Path(config.runs_dir) / config.name, None
    if ranks.leads:  # the lock comes first: nobody else may add a step after the checkpoint is read
        lock = lock_directory(saved_path(directory).parent)
        stack.callback(os.close, lock)
    check_resumable(directory, config)
    finished_steps = ranks.decided(partial(made_steps, directory, config), "steps of a finished run")
    if finished_steps is not None and step is None:
        return lock, finished_steps, None
    choose = partial(choose_checkpoint, directory, config, step=step, announce=announce)
    return lock, None, chosen_on_all(choose, ranks)


def made_steps(directory: Path, config: RunConfig) -> int | None:
    """The steps of a run that has made all of them and recorded them whole; None for any other run.

    Raises:
        UserError: a file is damaged, or of another run.
    """
    files = RunDirectory(directory)
    steps = read_summary(directory).get("steps", 0)
    for read, path in (
        (read_examples, files.examples),
        (read_json_lines, files.held_out),
        (read_json_lines, files.warnings),
    ):
        read(path)  # refused before anything of the run is changed
    return steps if files.is_finished(config.steps) and not _missing_steps(directory, config, steps) else None


def _missing_steps(directory: Path, config: RunConfig, until: int) -> tuple[int, ...]:
    return incomplete_steps(directory, until, evaluated=_saved_config(directory, config).evaluation.problems > 0)


def chosen_on_all(
    choose: Callable[[], tuple[Checkpoint, TrainerState] | None], ranks: Ranks
) -> tuple[Checkpoint, TrainerState] | None:
    """The checkpoint that rank 0 chooses, on every rank."""
    chosen = choose() if ranks.leads else None
    path_and_step = None if chosen is None else (str(chosen[0].path), chosen[0].step)
    of_leader = ranks.gather(path_and_step, "checkpoint to continue from")[0]
    if ranks.leads or of_leader is None:
        return chosen
    checkpoint = Checkpoint(Path(of_leader[0]), of_leader[1])
    return checkpoint, read_state(checkpoint)


def newest_good(
    directory: Path, *, before: float = math.inf, announce: Callable[[str], None] = lambda sentence: None
) -> tuple[Checkpoint, TrainerState] | None:
    """The newest whole checkpoint of a run before a step, with its state: the weights that the step began from, or an
    earlier one did. None = there is none, so the run's start.

    Raises:
        UserError: there are some, and none is whole.
    """
    faults = []
    checkpoints = [saved for saved in RunDirectory(directory).saved_models() if saved.step < before]
    for checkpoint in reversed(checkpoints):
        try:
            chosen = checkpoint, read_state(checkpoint)
        except UserError as error:
            faults.append(str(error))
            continue
        for fault in faults:
            announce(f"The run skips a damaged checkpoint: {fault}")
        if faults:
            announce(f"The run continues from {checkpoint.path}.")
        return chosen
    if faults:
        raise UserError(f"expected an undamaged checkpoint, got none: {' '.join(faults)}")
    return None


def _ranges(steps: Sequence[int]) -> str:
    """Names ascending steps.

    >>> _ranges([0, 3, 4, 5, 9])
    'steps 0, 3 to 5, 9'
    """
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1][1:] = [step]
        else:
            runs.append([step])
    return "steps " + ", ".join(" to ".join(map(str, ends)) for ends in runs)


def differences(then: BaseModel, now: BaseModel, free: Collection[str]) -> list[str]:
    """Lists the settings that differ, with old and new value; `free` names settings and sections to ignore."""
    old, new = (_settings(config, free) for config in (then, now))
    changed = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    return [f"{key}: {old.get(key)!r} then, {new.get(key)!r} now" for key in changed]


def _settings(config: BaseModel, free: Collection[str]) -> dict[str, Any]:
    """Every setting by its dotted name, without those that `free` names."""
    settings = config.model_dump()
    ignored = tuple(f"{name}." for name in free)
    if isinstance(config, RunConfig):
        # A part of an algorithm that is None appears as the option value that turns it off.
        a = config.algorithm
        settings["algorithm"] = {"name": a.name, OWN: own_parts(a), **all_options(a)}
    return {key: value for key, value in _flat(settings).items() if not f"{key}.".startswith(ignored)}


def code_of_run(
    config: RunConfig, task: Task, parts: RunParts, ranks: Ranks, resumed: Path | None, trusted: Sequence[str]
) -> dict[str, Any]:
    """The digests of the code that decides a run, and the run's id.

    Raises:
        UserError: a run that is resumed was started with other code.
    """
    scorer = parts.step_parts.scorer
    rewards = [*scorer.rewards, *filter(None, [scorer.verifier])]
    # In no file of code: by name, with a digest.
    named = {f"reward {reward.name}": reward.function for reward in rewards} | {"task": task}
    digests = {name: own_code(value) for name, value in named.items()}
    objects = {name: digest for name, digest in digests.items() if digest is not None}
    code = code_of(rewards, config.algorithm.name, parts.step_parts.tokenizer, ranks) | {"objects": objects}
    if resumed is not None:
        refuse_changed_code(resumed, code, trusted)
        refuse_changes("resume", read_json(RunDirectory(resumed).code).get("objects", objects), objects)
    return code | {"run": run_id(config, parts.state, code, resumed)}


def run_id(config: RunConfig, state: TrainerState, code: Mapping[str, Any], resumed: Path | None) -> str:
    """The digest of what decides a run's numbers as it begins, which binds its checkpoints to it.

    Args:
        config: its configuration.
        state: its state as it begins or is resumed; `start` and `data` count.
        code: the digests of its code.
        resumed: the directory of a run that is resumed, which keeps its id; None for a new one.
    """
    recorded = {} if resumed is None else read_json(RunDirectory(resumed).code)
    run = recorded.get("run") or state.run
    if run:
        return str(run)
    text = json_text([_settings(config, _FREE), code, state.start, state.data], default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {key: value for name, part in tree.items() for key, value in _flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: tree}


# The record of a run, new or continued


def finished_run(directory: Path, step: int, *, lock: int | None, display: Display) -> RunEnd:
    """Completes what a kill in the last moment of a run left: the database as one file, the report. Trains nothing.

    Args:
        directory: a run that has made all of its steps.
        step: the last of them.
        lock: a handle of `lock_directory` on the leading rank; None on the others, which do nothing.
        display: gets what happened.
    """
    end = RunEnd(directory, read_summary(directory), True, step)
    if lock is not None:
        unfinished = [path for path in directory.glob("*.tmp") if path.is_symlink() or not path.is_dir()]
        is_left = bool(unfinished) or any(path.exists() for path in RunDirectory(directory).rollout_side_files)
        if is_left:
            RunRecord.reopen(directory, step, lock=lock).close()
            for path in unfinished:
                path.unlink()
        display.completed(end, repaired=is_left)
    return end


def open_record(
    directory: Path, config: RunConfig, parts: RunParts, *, resume: bool, lock: int | None, display: Display
) -> RunRecord:
    """Starts the record of a new run, or continues it after the step of `parts` and renames later checkpoints.

    Args:
        directory: the run.
        config: its configuration.
        parts: what the run is made of.
        resume: whether the run exists.
        lock: with `resume`, a handle of `lock_directory`, which the caller closes.
        display: gets a line for each renamed checkpoint.
    """
    if not parts.step_parts.learner.ranks.leads:
        return NoRecord(directory)
    if not resume:
        if not RunDirectory(directory).exists:  # else it is refused, to ranks that are started again too
            note_begun(directory)
        return RunRecord.create(directory, dump_config(config))
    step = parts.state.step
    note_begun(directory)
    for path in RunDirectory(directory).set_aside_after(step):
        display.say(f"{path} is after step {step}: renamed to {path.name}.aside.")
    prune_checkpoints(directory, config.checkpoint.keep)  # a kill may have come between a save and this
    record = RunRecord.reopen(directory, step, lock=lock)
    record.settings(dump_config(config))
    return record
