"""Makes a run directory with the steps of a run up to a checkpoint, for a run that continues from there."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
from grouprl.files import read_json
from grouprl.models.manifest import check_manifest, write_manifest
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory
from grouprl.record.queries import copy_steps
from grouprl.record.read import read_json_lines
from grouprl.record.rollouts import drop_after, open_rollouts
from grouprl.types import UserError


def fork_directory(source: Path, target: Path, step: int, config: RunConfig, config_yaml: str) -> None:
    """Makes the directory of the new run, whole or not at all; the source may be running.

    Args:
        source: directory of the run that is forked.
        target: of the new one, which does not exist.
        step: of the checkpoint.
        config: of the new run.
        config_yaml: the same as text.

    Raises:
        UserError: there is no such checkpoint, it is no plain folder, or no step is left to make.
    """
    saved = RunDirectory(source).checkpoint(step)
    checkpoint = saved.path
    missing = UserError(f"{source.name}: expected a checkpoint of step {step}, found none: choose one that is there")
    if not saved.is_complete:
        raise missing
    if config.steps <= step:
        raise UserError(f"steps: expected more than {step}, the step of the checkpoint, got {config.steps}")
    # A link would bring what it points to into the new run, wherever that lies.
    if any(path.is_symlink() for path in (checkpoint, *checkpoint.rglob("*"))):
        raise UserError(f"{checkpoint}: expected files and folders, found a link: copy what it points to")
    copied = target.with_name(f".{target.name}.fork")
    shutil.rmtree(copied, ignore_errors=True)
    try:
        copied.mkdir(parents=True)
        fork = RunDirectory(copied)
        try:
            shutil.copytree(checkpoint, fork.checkpoint(step).path, symlinks=True)
            check_manifest(fork.checkpoint(step).path)
        except OSError:
            if saved.is_complete:
                raise
            raise missing from None  # a run in progress keeps its last checkpoints alone
        copied_files = RunDirectory(copied)
        for path, line_file in zip(RunDirectory(source).line_files, copied_files.line_files, strict=True):
            rows = [row for row in read_json_lines(path) if row["step"] <= step]
            atomic_write_text(line_file, "".join(json_text(row) + "\n" for row in rows))
        with closing(open_rollouts(f"file:{quote(str(copied_files.rollouts.resolve()))}")) as copy:
            copy_steps(copy, source, [row["step"] for row in read_json_lines(copied_files.metrics)])
            drop_after(copy, step)
        run = hashlib.sha256(f"{checkpoint.resolve()}\n{config_yaml}".encode()).hexdigest()[:16]
        saved = fork.checkpoint(step)
        then, state = load_config(RunConfig, [RunDirectory(source).config], []), read_json(saved.state)
        if then.algorithm.kl_coef != config.algorithm.kl_coef:
            state["kl_coef"] = config.algorithm.kl_coef
        atomic_write_text(saved.state, json_text(state | {"run": run}, indent=2) + "\n")
        write_manifest(saved.path)
        atomic_write_text(fork.config, config_yaml)
        code = read_json(RunDirectory(source).code) | {"run": run}
        atomic_write_text(fork.code, json_text(code, indent=2) + "\n")
        atomic_write_text(fork.forked, json_text({"from": source.name, "step": step}) + "\n")
        copied.rename(target)
    finally:
        shutil.rmtree(copied, ignore_errors=True)
