"""The task `environment`: the environment owns the data, as in TRL without a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from grouprl.environments.base import JudgedByEnvironment
from grouprl.tasks.base import LazyProblems, Split, check_setting
from grouprl.types import Problem


@dataclass(frozen=True)
class Owned(JudgedByEnvironment):
    """The task `environment`: an empty message, to which `reset` adds the prompt, with another seed for each problem.

    Its rewards are those of the run and of the environment. Raises UserError for a setting out of range.
    """

    train_problems: int = 100_000
    eval_problems: int = 100
    name = "environment"
    verifier = None  # type: ignore[assignment]  # whether 1.0 is the most that an environment gives is not known
    default_rewards: ClassVar[Mapping[str, float]] = {}

    def __post_init__(self) -> None:
        for name in ("train_problems", "eval_problems"):
            check_setting(f"task.{name}", getattr(self, name), getattr(self, name) >= 1, "at least 1")

    @classmethod
    def example(cls) -> Problem:
        """The first problem."""
        return _problem("train", 0)

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, which differ in their id alone."""
        count = self.train_problems if split == "train" else self.eval_problems
        return LazyProblems(count, partial(_problem, split))


def _problem(split: Split, number: int) -> Problem:
    return Problem(f"environment/{split}/{number}", ({"role": "user", "content": ""},))
