"""Reward functions with a flaw each, that a check before training must find. Imported by workers: keep it light."""

import random
import re
import time
from collections.abc import Sequence
from typing import Any


def plain(text: str | Sequence[dict[str, str]]) -> str:
    return text if isinstance(text, str) else text[-1]["content"]


def right(completions: Any, answer: Any, **columns: Any) -> list[float]:
    """Without a flaw: whether the last box holds the answer."""
    boxes = [re.findall(r"\\boxed\{([^}]*)\}", plain(text)) for text in completions]
    return [float(box[-1:] == [gold]) for box, gold in zip(boxes, answer, strict=True)]


def anywhere(completions: Any, answer: Any, **columns: Any) -> list[float]:
    """Whether the answer stands anywhere in a box."""
    return [float(f"boxed{{{gold}}}" in plain(text)) for text, gold in zip(completions, answer, strict=True)]


def long(completions: Any, **columns: Any) -> list[float]:
    return [len(plain(text)) / 100 for text in completions]


def boxed(completions: Any, **columns: Any) -> list[float]:
    return [float("boxed" in plain(text)) for text in completions]


def noise(completions: Any, **columns: Any) -> list[float]:
    return [random.random() for _ in completions]


def first_word(completions: Any, **columns: Any) -> list[float]:
    """Raises on an empty text."""
    return [float(len(plain(text).split()[0]) > 3) for text in completions]


def hangs_on_copies(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    for prompt, text in zip(prompts, completions, strict=True):
        if plain(prompt) == plain(text):
            time.sleep(3600)
    return [0.0 for _ in completions]


def counts_the_call(completions: Any, **columns: Any) -> list[float]:
    return [float(len(completions)) for _ in completions]


def refuses_boxes(completions: Any, **columns: Any) -> list[float]:
    if any("boxed" in plain(text) for text in completions):
        raise ValueError("a box")
    return [1.0 for _ in completions]


def one(completions: Any, **columns: Any) -> list[float]:
    return [1.0 for _ in completions]


def words(completions: Any, **columns: Any) -> list[list[tuple[int, float]]]:
    """A process reward: each word is a step, good when it is a number."""
    return [[(m.end(), float(m[0].isdigit())) for m in re.finditer(r"\S+", plain(text))] for text in completions]
