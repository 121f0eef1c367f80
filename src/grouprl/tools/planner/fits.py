"""The largest group and the longest completion that fit in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grouprl.tools.planner.memory import StepShape

MOST_COMPLETIONS, MOST_TOKENS = 1024, 131_072


def largest_group(step: StepShape, memory: int, peak: Callable[[StepShape], int]) -> int:
    """Returns the completions of a problem that fit in `memory` bytes, at most MOST_COMPLETIONS; 0 = none fits.

    `peak` gives the bytes of a step.
    """
    return _largest(lambda size: peak(replace(step, group_size=size)) <= memory, MOST_COMPLETIONS)


def longest_completion(step: StepShape, memory: int, peak: Callable[[StepShape], int]) -> int:
    """Returns the tokens of a completion that fit in `memory` bytes, at most MOST_TOKENS; 0 = none fits."""
    return _largest(lambda tokens: peak(replace(step, completion_tokens=tokens)) <= memory, MOST_TOKENS)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Finds a number up to `most` that fits while its successor does not; memory nearly always grows with it."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
