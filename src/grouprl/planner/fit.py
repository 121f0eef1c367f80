"""The largest group and the longest completion that fit in a memory: a file, because a search is no arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grouprl.planner.memory import Networks, StepShape, plan_memory
from grouprl.planner.shapes import ModelShape

MOST_COMPLETIONS, MOST_TOKENS = 1024, 131_072
"""Where the searches end."""


def largest_group(shape: ModelShape, networks: Networks, step: StepShape, memory: int) -> int:
    """Completions of a problem that fit in `memory` bytes, at most MOST_COMPLETIONS; 0 = not even one."""
    return _largest(
        lambda size: plan_memory(shape, networks, replace(step, group_size=size)).peak <= memory, MOST_COMPLETIONS
    )


def longest_completion(shape: ModelShape, networks: Networks, step: StepShape, memory: int) -> int:
    """Tokens of a completion that fit in `memory` bytes, at most MOST_TOKENS; 0 = not even one."""
    return _largest(
        lambda tokens: plan_memory(shape, networks, replace(step, completion_tokens=tokens)).peak <= memory, MOST_TOKENS
    )


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """A number up to `most` that fits and whose successor does not: more takes more, but for how packs are filled."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
