"""Problem orders choose the problems of a step from the seed, the step and the pass rates found before it.

The pass rates come from the record, so a resumed run needs no other state. `edge.EdgeOrder` is the other problem order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

from grouprl.tasks.curriculum.pass_rates import PassRates
from grouprl.types import Problem

Visit = tuple[Problem, str]
"""A problem, and the name of the random stream that draws its completions at this visit."""


class ProblemOrder(Protocol):
    """Chooses the problems of every step."""

    def visits(self, problems: Sequence[Problem], *, step: int, rates: PassRates) -> list[Visit]:
        """The problems of a step (1, 2, ...), given the pass rates found by the steps before it."""

    def refill(
        self, problems: Sequence[Problem], count: int, *, step: int, round_: int, rates: PassRates, visited: int
    ) -> list[Visit]:
        """Further problems for a step whose groups were dropped by the algorithm's filter.

        Those of a smaller `count` begin those of a larger one, so that they can be sampled before all are known.

        Args:
            problems: of the train split.
            count: the number of further problems.
            step: 1, 2, ...
            round_: number of this refill within the step, 1, 2, ...
            rates: the pass rates that `visits` got.
            visited: the number of problems that this step has visited so far.
        """

    def possible(self, problems: Sequence[Problem], *, steps: range, refills: int) -> Iterator[Problem]:
        """Every problem that these steps and their refills can visit, whatever the verdicts; may repeat problems."""


def rounds(
    order: ProblemOrder,
    problems: Sequence[Problem],
    *,
    step: int,
    rates: PassRates,
    refills: int,
    kept: Sequence[bool],
) -> Iterator[tuple[list[Visit], Callable[[int], list[Visit]] | None]]:
    """The visits of a step round by round: its problems first, then replacements for problems of dropped groups.

    With each round comes a function that gives the next round's first visits for a number of groups that were dropped
    so far; None after the last round.

    Args:
        order: chooses the problems.
        problems: of the train split.
        step: 1, 2, ...
        rates: the pass rates before this step.
        refills: most rounds after the first.
        kept: whether each group of the rounds so far enters the loss; whoever takes a round extends it.
    """
    visits, visited = order.visits(problems, step=step, rates=rates), 0
    wanted = len(visits)
    for round_ in range(1, refills + 1):
        visited += len(visits)
        further = partial(order.refill, problems, step=step, round_=round_, rates=rates, visited=visited)
        yield visits, further
        if not (count := wanted - sum(kept)):
            return
        visits = further(count)
    yield visits, None


@dataclass(frozen=True)
class UniformOrder:
    """Visits all problems once in every epoch; each epoch has an order of its own."""

    problems_per_step: int  # P
    seed: int  # of the run

    def visits(self, problems: Sequence[Problem], *, step: int, rates: PassRates) -> list[Visit]:
        """The next P problems of the epoch's order; see `ProblemOrder.visits`."""
        first = (step - 1) * self.problems_per_step
        chosen = []
        for visit in range(first, first + self.problems_per_step):
            epoch, place = divmod(visit, len(problems))
            chosen.append((problems[epoch_order(self.seed, epoch, len(problems))[place]], f"epoch {epoch}"))
        return chosen

    def refill(
        self, problems: Sequence[Problem], count: int, *, step: int, round_: int, rates: PassRates, visited: int
    ) -> list[Visit]:
        """Random problems, each at most once in a round; see `ProblemOrder.refill`."""
        rng = random.Random(f"refill/{self.seed}/{step}/{round_}")
        places: dict[int, None] = {}
        while len(places) < min(count, len(problems)):
            places.setdefault(rng.randrange(len(problems)))
        return [(problems[place], f"refill {step}.{round_}") for place in places]

    def possible(self, problems: Sequence[Problem], *, steps: range, refills: int) -> Iterator[Problem]:
        """Exactly the problems of a run that keeps no group; see `ProblemOrder.possible`."""
        count, rates = self.problems_per_step, PassRates()
        for step in steps:
            yield from (problem for problem, _ in self.visits(problems, step=step, rates=rates))
            for round_ in range(1, refills + 1):
                further = self.refill(problems, count, step=step, round_=round_, rates=rates, visited=round_ * count)
                yield from (problem for problem, _ in further)


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> list[int]:
    """The numbers below `count` in the order of an epoch (0, 1, ...). The list is cached: do not change it."""
    order = list(range(count))
    random.Random(f"order/{seed}/{epoch}").shuffle(order)
    return order
