"""Opens the record of a run, new or continued; a rank beside the one that writes gets a record that does nothing."""

from __future__ import annotations

from pathlib import Path

from grouprl.config.run import RunConfig, dump_config
from grouprl.ranks import note_begun
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_summary
from grouprl.record.write import NoRecord, RunRecord
from grouprl.run.assemble import RunParts
from grouprl.run.checkpoint import prune_checkpoints
from grouprl.run.ended import Run, report_of
from grouprl.run.terminal import Terminal


def finished_run(directory: Path, step: int, *, lock: int | None, terminal: Terminal) -> Run:
    """Completes what a kill in the last moment of a run left: the database as one file, the report. Trains nothing.

    Args:
        directory: a run that has made all of its steps.
        step: the last of them.
        lock: a handle of `lock_directory` on the leading rank; None on the others, which do nothing.
        terminal: gets what happened.
    """
    files = RunDirectory(directory)
    if lock is not None:
        unfinished = [path for path in directory.glob("*.tmp") if path.is_symlink() or not path.is_dir()]
        left = [*unfinished, *filter(Path.exists, files.rollout_side_files)]
        if left:
            RunRecord.reopen(directory, step, lock=lock).close()
            for path in unfinished:
                path.unlink()
        if left or not files.report.exists():
            terminal.say(f"Completed what a kill at the end of {directory} left: {report_of(directory)}")
        terminal.say(
            f"{directory} has finished all of its {step} steps: nothing is missing. To train further, give a larger "
            "number, steps=N, or in Python RunConfig(steps=N)."
        )
    return Run(directory, read_summary(directory), True)


def open_record(
    directory: Path, config: RunConfig, parts: RunParts, *, resume: bool, lock: int | None, terminal: Terminal
) -> RunRecord:
    """Starts the record of a new run, or continues it after the step of `parts` and renames later checkpoints.

    Args:
        directory: the run.
        config: its configuration.
        parts: what the run is made of.
        resume: whether the run exists.
        lock: with `resume`, a handle of `lock_directory`, which the caller closes.
        terminal: gets a line for each renamed checkpoint.
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
        terminal.say(f"{path} is after step {step}: renamed to {path.name}.aside.")
    prune_checkpoints(directory, config.checkpoint.keep)  # a kill may have come between a save and this
    record = RunRecord.reopen(directory, step, lock=lock)
    record.settings(dump_config(config))
    return record
