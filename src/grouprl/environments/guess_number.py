"""The task `guess_number`: the policy guesses; each answer says whether the number is higher or lower."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grouprl.environments.base import JudgedByEnvironment
from grouprl.tasks.base import DrawnProblems, Split, check_setting
from grouprl.types import Problem

_NUMBER = re.compile(r"\d{1,6}")


class NumberGame:
    """One game: `step` takes what the policy wrote, whose last number is the guess."""

    def reset(self, number: int, width: int) -> None:
        """Begins with the number to find."""
        self._number, self._guesses = number, 0
        self._enough = math.ceil(math.log2(width + 1))  # guesses that halving the range needs at most

    def step(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Answers a guess: the text, its reward, whether the game is over. It pays 1 / (1 + guesses beyond halving)."""
        numbers = _NUMBER.findall(message)
        self._guesses += 1
        if not numbers:
            return "Write a number.", 0.0, False, {}
        if (guess := int(numbers[-1])) == self._number:
            return "Right.", 1 / (1 + max(0, self._guesses - self._enough)), True, {}
        return "Higher." if guess < self._number else "Lower.", 0.0, False, {}


@dataclass(frozen=True)
class GuessNumber(JudgedByEnvironment, DrawnProblems):
    """The task `guess_number`: a number in a range of `width`. Raises UserError for an option out of range.

    Halving the range finds it in log2(width) guesses, which pay 1; each further guess makes the reward smaller.
    """

    width: int = 15
    train_problems: int = 1_000
    eval_problems: int = 100
    seed: int = 0
    name = "guess_number"
    game = NumberGame

    def __post_init__(self) -> None:
        check_setting("task.arguments.width", self.width, 10 <= self.width <= 10**5, "10 to 100,000")
        super().__post_init__()

    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """A number in a range of `width` numbers that begins anywhere up to 100."""
        rng = random.Random(f"guess_number/{self.seed}/{split}/{index}")
        while True:
            lowest = rng.randint(1, 100)
            number, highest = rng.randint(lowest, lowest + self.width - 1), lowest + self.width - 1
            text = f"I think of a number from {lowest} to {highest}. Guess it. I answer Higher, Lower or Right."
            prompt, columns = ({"role": "user", "content": text},), {"number": number, "width": self.width}
            yield f"{lowest}-{highest}: {number}", Problem(f"guess_number/{split}/{index}", prompt, columns)
