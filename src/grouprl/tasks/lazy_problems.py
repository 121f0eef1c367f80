"""Problems that are made on access, so that a run makes only the problems that it visits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import overload

from grouprl.tasks.base import Split, check_setting
from grouprl.tasks.splits import split_of
from grouprl.types import Problem, UserError


class LazyProblems(Sequence[Problem]):
    """A sequence of `count` problems; the pure function `make(place)` makes each of them and may cache it.

    `in_memory`: those among them that exist already, such as the rows of a file, which a check before a run reads.
    """

    def __init__(self, count: int, make: Callable[[int], Problem], in_memory: Sequence[Problem] = ()) -> None:
        self._count, self._make, self.in_memory = count, make, in_memory

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        places = range(self._count)[index]
        return [self._make(place) for place in places] if isinstance(places, range) else self._make(places)


class DrawnProblems(ABC):
    """The problems of a `Task` that draws them, a frozen dataclass; the hash of a problem's key decides its split.

    Problem i of a split is a pure function of (settings, seed, split, i), and no two splits share a key, whatever the
    seeds. Raises UserError for a split without problems.
    """

    train_problems: int
    eval_problems: int  # size of validation and of test

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the task."""

    def __post_init__(self) -> None:
        for name in ("train_problems", "eval_problems"):
            value = getattr(self, name)
            check_setting(f"task.{name}", value, value >= 1, "at least 1")

    @classmethod
    def example(cls) -> Problem:
        """The first problem."""
        return cls().problems("train")[0]

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split. Train problems are made on access; held-out problems are all different."""
        if split == "train":
            return LazyProblems(self.train_problems, partial(_train_problem, self))
        return _held_out(self, split)

    @abstractmethod
    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """Keys and problems; the first of them that belongs to the split and is not taken becomes problem `index`."""

    def too_few(self, split: Split, found: int) -> UserError:
        """The error for a split with only `found` different problems."""
        return UserError(
            f"task.eval_problems: expected no more different problems for {split} than {self.name} has with these "
            f"arguments (about {found}), got {self.eval_problems}: lower it, or make the problems harder"
        )


def _candidates(task: DrawnProblems, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
    return ((key, problem) for key, problem in task.draw(split, index) if split_of(key) == split)


@lru_cache(maxsize=1 << 14)
def _train_problem(task: DrawnProblems, index: int) -> Problem:
    for _, problem in _candidates(task, "train", index):
        return problem
    raise UserError(
        f"task.arguments: expected more different problems of {task.name}, got none for train: make the problems harder"
    )


@lru_cache(maxsize=8)
def _held_out(task: DrawnProblems, split: Split) -> tuple[Problem, ...]:
    taken: dict[str, Problem] = {}
    for index in range(task.eval_problems):
        found = next((pair for pair in _candidates(task, split, index) if pair[0] not in taken), None)
        if found is None:
            raise task.too_few(split, len(taken))
        taken.update([found])
    return tuple(taken.values())
