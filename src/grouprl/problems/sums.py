"""Sums of two numbers, in one sentence: what a small model that was never trained for a task can begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from grouprl.tasks.answers import BoxedAnswers
from grouprl.tasks.base import Split, check_setting, position
from grouprl.types import Problem

_SMALLEST, _LARGEST = 2, 300
_TEST, _VALIDATION = 0.25, 0.3  # where these splits end: there are few pairs, and an interval needs some


@dataclass(frozen=True)
class Sums(BoxedAnswers):
    """The task `sums`: "What is 8 + 12?", with numbers from 2 to `largest`; every pair of numbers is in one split.

    Both orders of a pair are in the same split, so that no evaluated sum is trained on. The verifier asks for no form:
    see the reward `last_number`. Raises UserError for an option out of range.
    """

    largest: int = 19
    name = "sums"
    verifier = "last_number"

    def __post_init__(self) -> None:
        sizes = range(9, _LARGEST)
        check_setting("task.arguments.largest", self.largest, self.largest in sizes, f"{sizes[0]} to {sizes[-1]}")

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """1.0 for the right sum."""
        return {"last_number": 1.0}

    @classmethod
    def example(cls) -> Problem:
        """The first problem."""
        return cls().problems("train")[0]

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in an order that says nothing about the numbers."""
        return _splits(self.largest)[split]

    def gold(self, problem: Problem) -> str | None:
        """The sum in one equation."""
        return f"{problem.columns['left']} + {problem.columns['right']} = {problem.columns['answer']}."


@lru_cache(maxsize=4)
def _splits(largest: int) -> dict[Split, tuple[Problem, ...]]:
    splits: dict[Split, list[Problem]] = {"train": [], "validation": [], "test": []}
    for left in range(_SMALLEST, largest + 1):
        for right in range(_SMALLEST, largest + 1):
            share = position(f"{min(left, right)} + {max(left, right)}")
            split: Split = "test" if share < _TEST else "validation" if share < _VALIDATION else "train"
            prompt = ({"role": "user", "content": f"What is {left} + {right}?"},)
            columns = {"left": left, "right": right, "answer": str(left + right)}
            splits[split].append(Problem(f"sums/{left}+{right}", prompt, columns))
    return {split: tuple(sorted(part, key=lambda problem: position(problem.id))) for split, part in splits.items()}
