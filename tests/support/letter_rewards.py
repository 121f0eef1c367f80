"""Rewards in which even a random model differs from itself. Imported by worker processes: keep it light."""

import re
from collections.abc import Callable, Sequence
from typing import Any


def plain(completion: str | Sequence[dict[str, str]]) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def letters(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
    """Share of the characters that are letters."""
    return [len(re.findall("[a-z]", text)) / max(1, len(text)) for text in map(plain, completions)]


def words(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[list[tuple[int, float]]]:
    """A step after every third character, good when it ends in a letter."""
    return [[(end, float(text[end - 1].isalpha())) for end in range(3, len(text) + 1, 3)] for text in completions]


def rarely(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
    """1 for a third of the texts, whatever they are: many groups of four are all 0."""
    return [float(sum(map(ord, text)) % 3 == 0 and len(text) > 2) for text in completions]


class InProcess:
    """`letters`, called in the run's own process once a step, after something else happens there."""

    in_process = True

    def __init__(self, happens: Callable[[int], object]) -> None:
        self.calls = 0
        self.happens = happens

    def __call__(self, **keywords: Any) -> list[float]:
        self.calls += 1
        self.happens(self.calls)
        return letters(**keywords)
