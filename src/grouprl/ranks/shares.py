"""Divides work evenly among ranks, and adds partial sums in an order that does not depend on their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")


def shares(costs: Sequence[int], count: int) -> list[list[int]]:
    """Divides indices 0, 1, ... among `count` takers; each index goes to the taker with the least cost so far.

    >>> shares([5, 1, 4, 1], 2)
    [[0, 3], [1, 2]]
    """
    taken: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):  # the largest first; ties in their order
        least = loads.index(min(loads))
        taken[least].append(index)
        loads[least] += costs[index]
    return [sorted(indices) for indices in taken]


class TreeSum(Generic[Value]):
    """Adds values in a balanced binary tree: ((a + b) + (c + d)) + ... It holds one partial sum for each level.

    The sum of 2^k values is the same to the bit whether one process adds all of them, or several add an equal part of
    2^j values each and one adds their sums in turn.
    """

    def __init__(self, add: Callable[[Value, Value], Value]) -> None:
        self._add = add
        self._waiting: list[tuple[int, Value]] = []  # level and partial sum, as the bits of a binary counter

    def push(self, value: Value) -> None:
        """Adds the next value."""
        level = 0
        while self._waiting and self._waiting[-1][0] == level:
            value = self._add(self._waiting.pop()[1], value)
            level += 1
        self._waiting.append((level, value))

    def total(self) -> Value:
        """The sum of 2^k values."""
        ((_, total),) = self._waiting
        return total
