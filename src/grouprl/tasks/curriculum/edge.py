"""The problem order that prefers problems at the edge of the policy's ability and still visits all others."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, chain, islice

import numpy as np

from grouprl.tasks.base import check_setting
from grouprl.tasks.curriculum.order import UniformOrder, Visit, epoch_order
from grouprl.tasks.curriculum.pass_rates import Array, PassRates, expected_signal
from grouprl.types import Problem, UserError


@dataclass(frozen=True)
class EdgeOrder:
    """Prefers problems whose next group is likely to have both correct and wrong completions.

    A shuffle by the seed puts all problems in one fixed order. A share `floor` of the visits cycles through that order,
    so that any ceil(problems / (floor * P)) consecutive steps visit every problem. The other visits of a step are drawn
    without replacement; the chance of a problem is proportional to `expected_signal ** sharpness`.

    Unseen problems all have the prior's expected signal, so they also come in the fixed order: the problems seen so far
    are always its beginning, and a step reads no others. At most as many unseen problems take part in the draw as have
    been seen; otherwise no problem of an endless data set would come twice.

    Raises UserError for a setting out of range.
    """

    problems_per_step: int  # P
    seed: int  # of the run
    group_size: int  # G
    floor: float = 0.2
    sharpness: float = 2.0  # 0 = every seen problem has the same chance

    def __post_init__(self) -> None:
        size = self.group_size
        check_setting("rollout.group_size", size, size >= 2, "2 or more with order=edge")
        check_setting("rollout.curriculum.floor", self.floor, 0 < self.floor <= 1, "more than 0 and at most 1")
        check_setting("rollout.curriculum.sharpness", self.sharpness, 0 <= self.sharpness <= 16, "0 to 16")

    def visits(self, problems: Sequence[Problem], *, step: int, rates: PassRates) -> list[Visit]:
        """The problems of the floor, then the drawn ones, all different; see `ProblemOrder.visits`.

        Raises:
            UserError: there are fewer problems than a step visits.
            ValueError: the pass rates do not belong to the steps before this one.
        """
        if len(problems) < self.problems_per_step:
            raise UserError(
                f"rollout.problems_per_step: expected at most {len(problems)}, as many as there are train problems, "
                f"with rollout.curriculum.order=edge, got {self.problems_per_step}: lower it, or use order=uniform"
            )
        return self._first(self.problems_per_step, problems, step, rates)

    def refill(
        self, problems: Sequence[Problem], count: int, *, step: int, round_: int, rates: PassRates, visited: int
    ) -> list[Visit]:
        """The next problems of the step's draw; random ones once all were visited. See `ProblemOrder.refill`."""
        further = self._first(visited + count, problems, step, rates)[visited:]
        if further:
            return further
        uniform = UniformOrder(self.problems_per_step, self.seed)
        return uniform.refill(problems, count, step=step, round_=round_, rates=rates, visited=visited)

    def possible(self, problems: Sequence[Problem], *, steps: range, refills: int) -> Iterator[Problem]:
        """The problems that these steps would visit if each of them was new; see `ProblemOrder.possible`."""
        most = (steps.stop - 1) * self.problems_per_step * (1 + refills)
        return (problems[place] for place in epoch_order(self.seed, 0, len(problems))[:most])

    def _first(self, count: int, problems: Sequence[Problem], step: int, rates: PassRates) -> list[Visit]:
        """The first `count` visits of a step; the visits of a smaller count begin those of a larger one."""
        total, known = len(problems), list(rates.counts)
        share = Fraction(str(self.floor)) * self.problems_per_step  # exact: 15 * 3.2 is 48, not a little more
        turns = range(math.ceil((step - 1) * share), math.ceil(step * share))
        if not min(turns.start, total) <= len(known) <= total:
            raise ValueError(f"expected the pass rates of all steps before {step}, got those of {len(known)} problems")
        streams = {turn % total: f"epoch {turn // total}" for turn in turns}
        streams |= dict.fromkeys(self._drawn(count - len(streams), total, streams, step, rates), f"edge {step}")
        order, visits = epoch_order(self.seed, 0, total), []
        for rank, stream in streams.items():
            problem = problems[order[rank]]
            if rank < len(known) and known[rank] != problem.id:
                raise ValueError(f"expected {problem.id} as number {rank} of the pass rates, got {known[rank]}")
            visits.append((problem, stream))
        return visits

    def _drawn(self, count: int, total: int, taken: Collection[int], step: int, rates: PassRates) -> list[int]:
        """Ranks in the fixed order, none of them taken, sorted by arrival in an exponential race.

        A problem arrives at time -log(u) / weight. The first arrivals are a draw without replacement with chances
        proportional to the weights (Efraimidis and Spirakis 2006).
        """
        seen, first_new = len(rates), max(len(rates), 1 + max(taken, default=-1))
        times = self._waits("seen", step, seen)
        times /= expected_signal(*rates.columns(), self.group_size) ** self.sharpness
        times[[rank for rank in taken if rank < seen]] = np.inf
        # Unseen problems have equal weights: the first of k of them arrives k times as fast as one alone.
        new = min(total - first_new, seen)
        prior = expected_signal(np.zeros(1), np.zeros(1), self.group_size)[0] ** self.sharpness
        waits = self._waits("new", step, min(count, new))
        arrivals = np.array(list(accumulate(wait / (prior * (new - came)) for came, wait in enumerate(waits))))
        finish = np.concatenate([times, arrivals])
        upcoming = iter(range(first_new, total))
        ranks = (
            int(place) if place < seen else next(upcoming)
            for place in np.argsort(finish, kind="stable")
            if np.isfinite(finish[place])
        )
        return list(islice(chain(ranks, upcoming), count))

    def _waits(self, of: str, step: int, count: int) -> Array:
        """Exponential waiting times of mean 1, float64 [count]; a smaller count gives the beginning of a larger one."""
        rng = random.Random(f"{of}/{self.seed}/{step}")
        return np.array([-math.log1p(-rng.random()) for _ in range(count)], np.float64)
