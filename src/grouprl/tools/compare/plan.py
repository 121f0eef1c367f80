"""Plans the runs of a comparison and reports all errors before the first run starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grouprl.config.checks import check_sections
from grouprl.config.comparison import CompareConfig
from grouprl.config.run import RunConfig, load_config
from grouprl.record.layout import RunDirectory
from grouprl.rewards.configured import configured_rewards
from grouprl.run.resume import differences, with_run_dtype
from grouprl.tasks import load_task
from grouprl.tools.compare.read import run_folder
from grouprl.types import UserError

Resolve = Callable[[Sequence[str]], RunConfig]
"""Makes a configuration from the arguments of `grouprl train`: files, recipes, changes such as steps=10."""

_PLACE = ("name", "runs_dir")  # settings that locate a run and do not affect its results
_DECIDED = (*_PLACE, "seed")  # settings that the comparison decides


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison."""

    variant: str
    config: RunConfig

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.config.runs_dir) / self.config.name

    @property
    def finished(self) -> bool:
        """Whether the run has made its last step and the evaluation after it."""
        return RunDirectory(self.directory).is_finished(self.config.steps)

    @property
    def newest(self) -> dict[str, Any]:
        """The metrics of the newest step; empty before the first step."""
        return RunDirectory(self.directory).newest_metrics()


def planned_runs(config: CompareConfig, resolve: Resolve) -> tuple[PlannedRun, ...]:
    """Plans all runs, seed by seed, so that a comparison that is stopped early is balanced; writes nothing.

    Raises:
        UserError: lists the errors of all variants, each once.
    """
    planned: list[PlannedRun] = []
    errors: dict[str, dict[str, None]] = {}  # the variants that have each error
    folder = str(Path(config.runs_dir) / config.name)
    for seed in config.seeds:
        for variant, changes in config.variants.items():
            given = [*config.base, *config.settings, *changes]
            decided = [f"name={run_folder(variant, seed)}", f"seed={seed}", f"runs_dir={json.dumps(folder)}"]
            with _collected(errors, variant):
                if wrong := [text for text in given if text.partition("=")[0] in _DECIDED]:
                    names = ", ".join(_DECIDED)
                    raise UserError(f"{', '.join(wrong)}: the comparison decides {names}: remove them")
            with _collected(errors, variant):
                run = PlannedRun(variant, with_run_dtype(resolve([*given, *decided]), resume=True))
                check_sections(run.config)
                configured_rewards(run.config, load_task(**run.config.task.model_dump()))
                planned.append(run)
    if errors:
        lines = [
            line if len(names) == len(config.variants) else f"variants {', '.join(names)}: {line}"
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


@contextmanager
def _collected(found: dict[str, dict[str, None]], variant: str) -> Iterator[None]:
    """Adds the errors of a configuration that the block raises: their texts, with the variants that have each."""
    try:
        yield
    except UserError as error:
        for line in str(error).removeprefix("errors in the configuration:\n  ").split("\n  "):
            found.setdefault(line, {})[variant] = None


def refuse_other_runs(directory: Path, planned: Sequence[PlannedRun]) -> None:
    """Raises UserError if the folder has runs that do not belong to this comparison."""
    if RunDirectory(directory).exists:
        raise UserError(f"{directory}: expected the folder of a comparison, found a run: choose another name")
    changed = []
    for run in planned:
        made = RunDirectory(run.directory)
        if made.exists:
            then = load_config(RunConfig, [made.config], [])
            changed += [f"{run.directory}: {text}" for text in differences(then, run.config, _PLACE)]
    if changed:
        raise UserError(
            "\n  ".join([f"{directory}: expected runs with the settings of this comparison, got others:", *changed])
            + "\n  restore the settings, choose another name, or remove these folders"
        )
