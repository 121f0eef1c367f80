"""What a task is: it gives problems and names the reward that knows a correct completion when it sees one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from grouprl.types import Problem

Split = Literal["train", "validation", "test"]


class Task(Protocol):
    """Problems to train and to be judged on. One short file per task implements this."""

    @property
    def name(self) -> str:
        """The name users write in a configuration."""
        ...

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """Reward names and weights, used when the configuration names none."""
        ...

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """Process rewards and weights, used besides them where the algorithm gives credit to steps; may be empty."""
        ...

    @property
    def verifier(self) -> str | None:
        """The reward that gives 1.0 or more for a correct completion; accuracy and evaluation count by it.

        None where nothing says what is correct: accuracy is then 0.
        """
        ...

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """Reward functions in TRL's form that belong to this task alone, found by name before the built-in ones."""
        ...

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in a fixed order; splits are disjoint."""
        ...

    def gold(self, problem: Problem) -> str | None:
        """The text of a completion that solves the problem; None where none is known."""
        ...

    def traits(self, text: str) -> Mapping[str, bool]:
        """Yes/no properties of a completion that are reported but never rewarded, e.g. {"worked": True}."""
        ...
