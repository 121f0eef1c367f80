"""Chooses the problems of each step from the seed, the step and the pass rates found so far.

In: problems and verdicts. Out: visits. It never samples or scores; the pass rates come from the record, so a resumed
run needs no other state.

The pass rate p of a problem (the chance that a completion of it is correct) has the posterior Beta(successes + 1/2,
failures + 1/2). The prior is Jeffreys' Beta(1/2, 1/2), because pass rates are U-shaped: the policy solves most problems
of a data set nearly always or nearly never. The flat prior would learn too little from an all-wrong group.

The policy moves, so at every visit the earlier counts of that problem fade: counts from `half_life` visits ago weigh
half. Everything here is a pure function of the verdicts in their recorded order, so that a resumed run rebuilds the
pass rates from its record, to the last bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, chain, islice
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from grouprl.tasks.base import check_setting
from grouprl.types import Group, Problem, RewardOutcome, UserError

PRIOR = 0.5  # of both parameters of the Beta distribution
HOPELESS, SOLVED = 0.1, 0.9  # a posterior mean <= HOPELESS makes a problem hopeless, one >= SOLVED solved

Verdict = tuple[str, int, int]
"""The problem's id of one group, and the numbers of its correct and of its wrong completions."""

Array = np.ndarray[Any, np.dtype[np.float64]]

Visit = tuple[Problem, str]
"""A problem, and the name of the random stream that draws its completions at this visit."""


@dataclass(frozen=True)
class PassRates:
    """The faded counts of every problem seen so far, in the order of their first visits.

    >>> update(PassRates(), [("train-1", 3, 1)]).mean("train-1")
    0.7
    """

    counts: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))  # right, wrong

    def __len__(self) -> int:
        return len(self.counts)

    def mean(self, problem_id: str) -> float:
        """Posterior mean of a pass rate, in (0, 1). Raises KeyError for a problem that was never visited."""
        successes, failures = self.counts[problem_id]
        return (successes + PRIOR) / (successes + failures + 2 * PRIOR)

    def columns(self) -> tuple[Array, Array]:
        """The counts (successes_M, failures_M) of the M problems seen, each float64 [M]."""
        counts_M2 = np.array(list(self.counts.values()), np.float64).reshape(-1, 2)
        return counts_M2[:, 0], counts_M2[:, 1]


def verdicts(groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]]) -> list[Verdict]:
    """One verdict per group [P] from its outcomes [P][G]; completions that the verifier failed on are not counted."""
    correct = [[outcome.correct for outcome in row] for row in outcomes]
    return [(group.problem.id, row.count(True), row.count(False)) for group, row in zip(groups, correct, strict=True)]


def update(rates: PassRates, verdicts: Iterable[Verdict], *, half_life: float = 1.0) -> PassRates:
    """The pass rates after some more groups.

    Args:
        rates: the pass rates before these groups.
        verdicts: in the order of their steps; one call for several steps gives the same as one call each.
        half_life: visits to a problem after which its earlier counts weigh half, > 0; infinity = they never fade.
    """
    decay, counts = 0.5 ** (1 / half_life), dict(rates.counts)
    for problem_id, correct, wrong in verdicts:
        successes, failures = counts.get(problem_id, (0.0, 0.0))
        counts[problem_id] = (successes * decay + correct, failures * decay + wrong)
    return PassRates(MappingProxyType(counts))


def expected_signal(successes_M: Array, failures_M: Array, group_size: int) -> Array:
    """Chance that the next group of each problem has both correct and wrong completions: 1 - E[p^G] - E[(1 - p)^G].

    Args:
        successes_M, failures_M: counts of each problem, float64 [M].
        group_size: G, at least 2.

    Returns:
        float64 [M] in (0, 1), exact under the posterior: E[p^G] is the product over i < G of (a + i) / (a + b + i).
    """
    a_M, b_M = successes_M + PRIOR, failures_M + PRIOR
    all_right_M, all_wrong_M = np.ones_like(a_M), np.ones_like(a_M)
    for i in range(group_size):
        all_right_M *= (a_M + i) / (a_M + b_M + i)
        all_wrong_M *= (b_M + i) / (a_M + b_M + i)
    return np.maximum(1 - all_right_M - all_wrong_M, 1e-12)  # rounding must not make a weight of 0


def curriculum_metrics(rates: PassRates) -> dict[str, float]:
    """Metrics of the problems seen so far, recorded by each step.

    `curriculum/seen` counts them; `solved` and `hopeless` those with a posterior mean of at least 0.9 and of at most
    0.1; `edge` the others; `mean_pass_rate` is the mean of all posterior means.
    """
    successes_M, failures_M = rates.columns()
    mean_M = (successes_M + PRIOR) / (successes_M + failures_M + 2 * PRIOR)
    seen, solved, hopeless = len(rates), int((mean_M >= SOLVED).sum()), int((mean_M <= HOPELESS).sum())
    return {
        "curriculum/mean_pass_rate": float(mean_M.mean()) if seen else math.nan,
        "curriculum/edge": seen - solved - hopeless,
        "curriculum/seen": seen,
        "curriculum/solved": solved,
        "curriculum/hopeless": hopeless,
    }


def beta_quantile(probability: float, a: float, b: float) -> float:
    """The x with P(p <= x) = probability for p ~ Beta(a, b), by bisection, to the precision of a float64."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if beta_probability(middle, a, b) < probability else (low, middle)
    return high


def beta_probability(x: float, a: float, b: float) -> float:
    """P(p <= x) for p ~ Beta(a, b) and x in [0, 1]: the regularized incomplete beta function.

    Computed by the continued fraction DLMF 8.17.22, on the side of the mean where it converges fast.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_probability(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # 1 / (1 + d1 / (1 + d2 / (1 + ...))), with enough terms that the rest is below a rounding error.
    terms = 40 + int(4 * math.sqrt(max(a, b)))
    value = 1.0
    for m in range(terms, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        value = 1 + odd / (1 + even / value)
    return math.exp(log_front) / a * (1 / value)


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
            epoch, rank = divmod(visit, len(problems))
            chosen.append((problems[epoch_order(self.seed, epoch, len(problems))[rank]], f"epoch {epoch}"))
        return chosen

    def refill(
        self, problems: Sequence[Problem], count: int, *, step: int, round_: int, rates: PassRates, visited: int
    ) -> list[Visit]:
        """Random problems, each at most once in a round; see `ProblemOrder.refill`."""
        rng = random.Random(f"refill/{self.seed}/{step}/{round_}")
        indices: dict[int, None] = {}
        while len(indices) < min(count, len(problems)):
            indices.setdefault(rng.randrange(len(problems)))
        return [(problems[index], f"refill {step}.{round_}") for index in indices]

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
        return (problems[index] for index in epoch_order(self.seed, 0, len(problems))[:most])

    def _first(self, count: int, problems: Sequence[Problem], step: int, rates: PassRates) -> list[Visit]:
        """The first `count` visits of a step; the visits of a smaller count begin those of a larger one."""
        total, seen = len(problems), list(rates.counts)
        share = Fraction(str(self.floor)) * self.problems_per_step  # exact: 15 * 3.2 is 48, not a little more
        turns = range(math.ceil((step - 1) * share), math.ceil(step * share))
        if not min(turns.start, total) <= len(seen) <= total:
            raise ValueError(f"expected the pass rates of all steps before {step}, got those of {len(seen)} problems")
        streams = {turn % total: f"epoch {turn // total}" for turn in turns}
        streams |= dict.fromkeys(self._drawn(count - len(streams), total, streams, step, rates), f"edge {step}")
        order, visits = epoch_order(self.seed, 0, total), []
        for rank, stream in streams.items():
            problem = problems[order[rank]]
            if rank < len(seen) and seen[rank] != problem.id:
                raise ValueError(f"expected {problem.id} as number {rank} of the pass rates, got {seen[rank]}")
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
            int(runner) if runner < seen else next(upcoming)
            for runner in np.argsort(finish, kind="stable")
            if np.isfinite(finish[runner])
        )
        return list(islice(chain(ranks, upcoming), count))

    def _waits(self, of: str, step: int, count: int) -> Array:
        """Exponential waiting times of mean 1, float64 [count]; a smaller count gives the beginning of a larger one."""
        rng = random.Random(f"{of}/{self.seed}/{step}")
        return np.array([-math.log1p(-rng.random()) for _ in range(count)], np.float64)
