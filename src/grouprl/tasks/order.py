"""Which problems a step visits: a function of the seed and the step alone, so that a resumed run needs no state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from grouprl.types import Problem

Visit = tuple[Problem, str]
"""A problem, and the name of the random stream that its completions are drawn from at this visit."""


def step_visits(problems: Sequence[Problem], count: int, *, step: int, seed: int) -> list[Visit]:
    """The problems of a step. Every epoch visits all of them, in an order of its own.

    Args:
        problems: of the train split.
        count: problems in a step.
        step: 1, 2, ...
        seed: of the run.
    """
    first = (step - 1) * count
    chosen = []
    for visit in range(first, first + count):
        epoch, place = divmod(visit, len(problems))
        chosen.append((problems[_epoch_order(seed, epoch, len(problems))[place]], f"epoch {epoch}"))
    return chosen


def refill_visits(problems: Sequence[Problem], count: int, *, step: int, seed: int, round_: int) -> list[Visit]:
    """Further problems for a step whose groups were dropped, drawn at random, each at most once in a round.

    A larger `count` goes on where a smaller one ends.
    """
    rng = random.Random(f"refill/{seed}/{step}/{round_}")
    places: dict[int, None] = {}
    while len(places) < min(count, len(problems)):
        places.setdefault(rng.randrange(len(problems)))
    return [(problems[place], f"refill {step}.{round_}") for place in places]


@lru_cache(maxsize=2)
def _epoch_order(seed: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    random.Random(f"order/{seed}/{epoch}").shuffle(order)
    return order
