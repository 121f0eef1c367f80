"""Problems that are made on access, so that a run makes only the problems that it visits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from grouprl.types import Problem


class LazyProblems(Sequence[Problem]):
    """A sequence of `count` problems; the pure function `make(place)` makes each of them and may cache it."""

    def __init__(self, count: int, make: Callable[[int], Problem]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        places = range(self._count)[index]
        return [self._make(place) for place in places] if isinstance(places, range) else self._make(places)


def map_problems(problems: Sequence[Problem], change: Callable[[Problem], Problem]) -> Sequence[Problem]:
    """Applies `change` to every problem: at once where they are in memory, else on access."""
    if isinstance(problems, list | tuple):
        return tuple(map(change, problems))
    return LazyProblems(len(problems), lambda place: change(problems[place]))
