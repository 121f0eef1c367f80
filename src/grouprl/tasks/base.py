"""What a task is: it gives problems and knows a correct completion when it sees one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

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
        """Built-in reward names and weights, used when the configuration names none."""
        ...

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """Process rewards and weights, used besides them where the algorithm gives credit to steps; may be empty."""
        ...

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in a fixed order; splits are disjoint."""
        ...

    def correct(self, problem: Problem, text: str) -> bool:
        """Whether a completion's text solves the problem (what evaluation counts)."""
        ...

    def traits(self, text: str) -> Mapping[str, bool]:
        """Yes/no properties of a completion that are reported but never rewarded, e.g. {"worked": True}."""
        ...
