"""The protocol of tasks: a task gives problems and names the reward that verifies their completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from grouprl.types import Problem, UserError

Split = Literal["train", "validation", "test"]


class Task(Protocol):
    """Problems to train and to evaluate on. One short file per task implements this protocol."""

    @property
    def name(self) -> str:
        """The name users write in a configuration."""

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """Names and weights of the rewards of a run whose configuration names none."""

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """Names and weights of further process rewards, for algorithms that give credit to reasoning steps."""

    @property
    def verifier(self) -> str | None:
        """The reward that gives 1.0 or more for a correct completion; accuracy and evaluation use it.

        None for a task without a verifier, which has no accuracy.
        """

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """Reward functions in TRL's form that only this task has; their names come before those of built-in rewards."""

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in a fixed order; splits are disjoint."""

    def gold(self, problem: Problem) -> str | None:
        """The text of a completion that solves the problem; None where the task knows none."""

    def traits(self, text: str) -> Mapping[str, bool]:
        """Yes/no properties of a completion for the metrics, never for the reward, such as {"worked": True}."""


def solution(task: Task, problem: Problem, setting: str) -> str:
    """The task's solution of a problem; raises UserError, which names the setting that takes a file, if it has none."""
    if (found := task.gold(problem)) is None:
        raise UserError(
            f"task {task.name}: expected a solution, got none for {problem.where}: name a file with the columns prompt "
            f"and completion ({setting}=FILE.jsonl), or the column of a data file that holds its solutions "
            "(task.arguments.gold_column)"
        )
    return found


def check_setting(name: str, value: object, ok: bool, expected: str) -> None:
    """Raises UserError for a setting that is not ok."""
    if not ok:
        raise UserError(f"{name}: expected {expected}, got {value!r}: change it")
