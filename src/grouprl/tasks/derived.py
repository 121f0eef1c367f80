"""A task made from another, with other problems, solutions or rewards; the rest is the other's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.tasks.base import Split, Task
from grouprl.tasks.lazy_problems import LazyProblems
from grouprl.types import Problem


@dataclass(frozen=True)
class DerivedTask:
    """A `Task` whose parts are given one by one; made by `derived`."""

    problems: Callable[[Split], Sequence[Problem]]
    gold: Callable[[Problem], str | None]
    name: str
    verifier: str | None
    default_rewards: Mapping[str, float]
    default_step_rewards: Mapping[str, float]
    own_rewards: Mapping[str, Callable[..., Any]]
    traits: Callable[[str], Mapping[str, bool]]
    verifier_given: bool  # whether the user chose the verifier
    rows_of: Task | None  # held-out splits may be cut from its train rows

    @property
    def given(self) -> Collection[Split] | None:
        """The splits that its data has; None = its problems are no rows."""
        return getattr(self.rows_of, "given", None)


def derived(
    task: Task,
    problems: Callable[[Split], Sequence[Problem]],
    *,
    gold: Callable[[Problem], str | None] | None = None,
    default_rewards: Mapping[str, float] | None = None,
    cut: bool = True,
) -> Task:
    """The task with other problems; None keeps its own.

    `cut`: whether held-out splits may still be cut from its train rows, see `held_out.trained_on_the_rest`.
    """
    return DerivedTask(
        problems,
        task.gold if gold is None else gold,
        name=task.name,
        verifier=task.verifier,
        default_rewards=task.default_rewards if default_rewards is None else default_rewards,
        default_step_rewards=task.default_step_rewards,
        own_rewards=task.own_rewards,
        traits=task.traits,
        verifier_given=getattr(task, "verifier_given", not type(task).__module__.startswith("grouprl.")),
        rows_of=task if cut else None,
    )


def each(problems: Sequence[Problem], change: Callable[[Problem], Problem], first: int = 0) -> Sequence[Problem]:
    """The changed problems from place `first` on; lazy where the problems are lazy."""
    if isinstance(problems, list | tuple):
        return tuple(map(change, problems[first:]))
    in_memory = tuple(map(change, getattr(problems, "in_memory", ())[first:]))
    return LazyProblems(max(0, len(problems) - first), lambda place: change(problems[first + place]), in_memory)
