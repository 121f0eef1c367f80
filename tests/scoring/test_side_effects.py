"""Changes that a reward function makes outside of itself, told from those within it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from grouprl.scoring.side_effects import changed_outside

CALLS = 0
SEEN: list[str] = []
COUNTS: Counter[str] = Counter()
BY_LENGTH: defaultdict[str, dict[int, int]] = defaultdict(dict)
WORDS = {"good": 1.0}


def counting(completions):
    global CALLS
    CALLS += 1
    return [0.0] * len(completions)


def collecting(completions):
    SEEN.append(completions[0])
    return [0.0] * len(completions)


def adding(completions):
    COUNTS["calls"] += 1
    BY_LENGTH["all"][len(completions)] = 1
    return [0.0] * len(completions)


def reading(completions):
    """Looks up a global and changes a list and a dict of its own."""
    found, own = [], {}
    for said in completions:
        own[said] = WORDS.get(said, 0.0)
        found.append(own[said])
    return found


def enclosed() -> Callable[..., list[float]]:
    kept: list[str] = []

    def keeping(completions):
        kept.extend(completions)
        return [float(len(kept))] * len(completions)

    return keeping


class Held:
    def __call__(self, completions):
        SEEN.append(completions[0])
        return [0.0] * len(completions)


class Counting:
    def __init__(self) -> None:
        self.calls, self.kept, self.weight = 0, list[str](), 1.0

    def __call__(self, completions):
        self.calls += 1
        self.kept.extend(completions)
        return [self.weight for _ in completions]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (counting, ["CALLS"]),
        (collecting, ["SEEN"]),
        (adding, ["BY_LENGTH", "COUNTS"]),
        (reading, []),
        (enclosed(), ["kept"]),
        (Held(), ["SEEN"]),
        (Counting(), ["self.calls", "self.kept"]),
        (partial(counting, extra=1), ["CALLS"]),
        (len, []),
        (eval("lambda completions: SEEN.append(completions)", {"SEEN": SEEN}), []),  # its source is not known
    ],
)
def test_names_that_a_function_changes(function: object, names: list[str]) -> None:
    assert changed_outside(function) == names
