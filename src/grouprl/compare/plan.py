"""Which runs a comparison is made of, and what is wrong with them, before the first one starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grouprl.compare.read import run_folder
from grouprl.config.comparison import CompareConfig
from grouprl.config.run import RunConfig, check_sections, load_config
from grouprl.record.layout import RunDirectory
from grouprl.rewards.configured import configured_rewards
from grouprl.run.resume import differences
from grouprl.tasks import load_task
from grouprl.types import UserError

Resolve = Callable[[Sequence[str]], RunConfig]
"""What `grouprl train` takes (files, recipes, changes such as steps=10), as a configuration."""

_PLACE = ("name", "runs_dir")  # of a run; everything else is what it is
_DECIDED = (*_PLACE, "seed")  # by the comparison


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
        return RunDirectory(self.directory).is_finished(self.config.steps)

    @property
    def newest(self) -> dict[str, Any]:
        """The metrics of its newest step; empty before the first one."""
        return RunDirectory(self.directory).newest_metrics()


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
    """The configuration, whose sections fit and whose task and rewards are there."""
    check_sections(config)
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
            for line in str(error).removeprefix("errors in the configuration:\n  ").split("\n  "):
                self._found.setdefault(line, {})[variant] = None

    def tell(self) -> None:
        """Raises UserError with all of them, if there are any."""
        lines = [
            line if len(names) == self._variants else f"variants {', '.join(names)}: {line}"
            for line, names in self._found.items()
        ]
        if lines:
            raise UserError("\n  ".join(["errors in the comparison:", *lines]))


def refuse_other_runs(directory: Path, planned: Sequence[PlannedRun]) -> None:
    """Raises UserError for what is there already and is not of this comparison."""
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
            + "\n  put the settings back as they were, choose another name, or remove these folders"
        )
