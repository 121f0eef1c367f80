"""The sampler that prefers problems at the edge of the policy's ability, and never starves the rest."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, chain, islice

import numpy as np

from grouprl.curriculum.order import Visit, epoch_order, refill_visits
from grouprl.curriculum.pass_rates import Array, PassRates, expected_signal
from grouprl.types import Problem, UserError


@dataclass(frozen=True)
class Edge:
    """Prefers problems whose next group is likely to have both correct and wrong completions.

    All problems stand in one fixed order, a shuffle by the seed. A share `floor` of the visits goes round that order
    without end, so that any ceil(problems / (floor * P)) steps in a row visit every problem. The other places of a
    step are drawn without replacement, a problem's chance in proportion to `expected_signal ** sharpness`.

    New problems are all alike, so they are taken in that order too: those seen so far are always the first of it, and
    a step looks at no others, however many there are. New ones weigh in the draw what the prior says of them, but no
    more of them than have been seen: of an endless data set no problem would come twice otherwise.

    Raises UserError for a setting out of range.
    """

    problems_per_step: int  # P
    seed: int  # of the run
    group_size: int  # G
    floor: float = 0.2
    sharpness: float = 2.0  # 0 = all that were seen alike

    def __post_init__(self) -> None:
        for name, value, ok, expected in (
            ("rollout.group_size", self.group_size, self.group_size >= 2, "2 or more with curriculum.sampler=edge"),
            ("curriculum.floor", self.floor, 0 < self.floor <= 1, "more than 0 and at most 1"),
            ("curriculum.sharpness", self.sharpness, 0 <= self.sharpness <= 16, "0 to 16"),
        ):
            if not ok:
                raise UserError(f"{name}: expected {expected}, got {value!r}: change it")

    def visits(self, problems: Sequence[Problem], *, step: int, rates: PassRates) -> list[Visit]:
        """The floor's problems, then those drawn, all different; see `Sampler.visits`.

        Raises:
            UserError: there are fewer problems than a step visits.
            ValueError: the pass rates are not those of the steps before this one.
        """
        if len(problems) < self.problems_per_step:
            raise UserError(
                f"rollout.problems_per_step: expected at most {len(problems)}, as many as there are train problems, "
                f"with curriculum.sampler=edge, got {self.problems_per_step}: lower it, or use sampler=uniform"
            )
        return self._first(self.problems_per_step, problems, step, rates)

    def refill(
        self, problems: Sequence[Problem], count: int, *, step: int, round_: int, rates: PassRates, visited: int
    ) -> list[Visit]:
        """Those that came next in the step's draw; any again once all were visited. See `Sampler.refill`."""
        further = self._first(visited + count, problems, step, rates)[visited:]
        return further or refill_visits(problems, count, step=step, seed=self.seed, round_=round_)

    def possible(self, problems: Sequence[Problem], *, steps: range, refills: int) -> Iterator[Problem]:
        """As many of the order as steps that meet only new problems would visit; see `Sampler.possible`."""
        most = (steps.stop - 1) * self.problems_per_step * (1 + refills)
        return (problems[place] for place in epoch_order(self.seed, 0, len(problems))[:most])

    def _first(self, count: int, problems: Sequence[Problem], step: int, rates: PassRates) -> list[Visit]:
        """The first visits of a step; a larger `count` goes on where a smaller one ends."""
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
        """Ranks in the order, none of them taken, as an exponential race brings them in.

        A problem comes in at -log(u) / weight. The first to come in are a draw without replacement in proportion to
        the weights (Efraimidis and Spirakis 2006).
        """
        seen, first_new = len(rates), max(len(rates), 1 + max(taken, default=-1))
        times = self._waits("seen", step, seen)
        times /= expected_signal(*rates.columns(), self.group_size) ** self.sharpness
        times[[rank for rank in taken if rank < seen]] = np.inf
        # New problems have equal weights: the next of k comes in k times as fast as one, whichever it is.
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
        """Exponential waiting times of mean 1, float64 [count]; more of them go on where fewer end."""
        rng = random.Random(f"{of}/{self.seed}/{step}")
        return np.array([-math.log1p(-rng.random()) for _ in range(count)], np.float64)
