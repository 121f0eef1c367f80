"""Checks a resume: it may change only the settings that earlier steps do not depend on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from grouprl.config.algorithm import all_options
from grouprl.config.run import RunConfig, load_config
from grouprl.models.precision import with_dtype
from grouprl.record.layout import RunDirectory
from grouprl.types import UserError

# All other settings determine problems, completions or updates.
_FREE = ("name", "runs_dir", "steps", "model.threads", "rollout.scoring", "evaluation", "checkpoint")


def saved_path(directory: Path) -> Path:
    """Returns the configuration file with which a run was started or last resumed.

    Raises:
        UserError: there is no run.
    """
    run = RunDirectory(directory)
    if not run.exists:
        raise UserError(f"{directory}: expected a run to resume, found no config.yaml: check name and runs_dir")
    return run.config


def with_run_dtype(config: RunConfig, *, resume: bool) -> RunConfig:
    """Replaces model.dtype=auto: see `with_dtype`. A run that is resumed keeps the dtype that it began with."""
    directory = Path(config.runs_dir) / config.name
    begun = resume and config.model.dtype == "auto" and RunDirectory(directory).exists
    return with_dtype(config, _begun(directory, config).model.dtype if begun else None)


def check_resumable(directory: Path, config: RunConfig) -> None:
    """Checks that the run in `directory` can be resumed with this configuration.

    Raises:
        UserError: earlier steps depend on a setting that differs, or the run has made all its steps.
    """
    changed = differences(_begun(directory, config), config, _FREE)
    if changed:
        raise UserError(
            f"--resume: expected the settings that {directory} was started with, got {'; '.join(changed)}: "
            f"leave them as they were (only {', '.join(_FREE)} may change), or start a new run under another name"
        )
    if RunDirectory(directory).is_finished(config.steps):
        raise UserError(
            f"--resume: {directory} has made all of its {config.steps} steps: give a larger number with steps=N"
        )


def _begun(directory: Path, config: RunConfig) -> RunConfig:
    own = {config.algorithm.name: config.algorithm}  # a program may have made it
    return load_config(RunConfig, [saved_path(directory)], [], context=own)


def differences(then: RunConfig, now: RunConfig, free: Collection[str]) -> list[str]:
    """Lists the settings that differ, with old and new value; `free` names settings and sections to ignore."""
    # A part of an algorithm that is None appears as the option value that turns it off.
    old, new = (
        _flat(config.model_dump() | {"algorithm": {"name": config.algorithm.name, **all_options(config.algorithm)}})
        for config in (then, now)
    )
    ignored = tuple(f"{name}." for name in free)
    changed = [key for key in sorted(old | new) if not f"{key}.".startswith(ignored) and old.get(key) != new.get(key)]
    return [f"{key}: {old.get(key)!r} then, {new.get(key)!r} now" for key in changed]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {key: value for name, part in tree.items() for key, value in _flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: tree}
