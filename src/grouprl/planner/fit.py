"""Finds the largest group and the longest completion that fit in memory. A file, because `memory.py` has no search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grouprl.planner.memory import Networks, StepShape, plan_memory
from grouprl.planner.shapes import ModelShape

MOST_COMPLETIONS, MOST_TOKENS = 1024, 131_072
"""Upper bounds of the searches."""


def largest_group(shape: ModelShape, networks: Networks, step: StepShape, memory: int) -> int:
    """Returns the completions of a problem that fit in `memory` bytes, at most MOST_COMPLETIONS; 0 = none fits."""
    return _largest(
        lambda size: plan_memory(shape, networks, replace(step, group_size=size)).peak <= memory, MOST_COMPLETIONS
    )


def longest_completion(shape: ModelShape, networks: Networks, step: StepShape, memory: int) -> int:
    """Returns the tokens of a completion that fit in `memory` bytes, at most MOST_TOKENS; 0 = none fits."""
    return _largest(
        lambda tokens: plan_memory(shape, networks, replace(step, completion_tokens=tokens)).peak <= memory, MOST_TOKENS
    )


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Finds a number up to `most` that fits while its successor does not; memory nearly always grows with it."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
