"""Pass rates of the problems that a run has visited: posterior mean, interval and expected signal.

The pass rate p of a problem (the chance that a completion of it is correct) has the posterior Beta(successes + 1/2,
failures + 1/2). The prior is Jeffreys' Beta(1/2, 1/2), because pass rates are U-shaped: the policy solves most problems
of a data set nearly always or nearly never. The flat prior would learn too little from an all-wrong group.

The policy moves, so at every visit the earlier counts of that problem fade: counts from `half_life` visits ago weigh
half. Everything here is a pure function of the verdicts in their recorded order, so that a resumed run rebuilds the
pass rates from its record, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from grouprl.types import Group, RewardOutcome

PRIOR = 0.5  # of both parameters of the Beta distribution
HOPELESS, SOLVED = 0.1, 0.9  # a posterior mean <= HOPELESS makes a problem hopeless, one >= SOLVED solved

Verdict = tuple[str, int, int]
"""The problem's id of one group, and the numbers of its correct and of its wrong completions."""

Array = np.ndarray[Any, np.dtype[np.float64]]


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

    def interval(self, problem_id: str, mass: float = 0.9) -> tuple[float, float]:
        """The central interval (low, high) that holds the pass rate with probability `mass`; the tails are equal.

        Raises KeyError for a problem that was never visited.
        """
        successes, failures = self.counts[problem_id]
        tail = (1 - mass) / 2
        a, b = successes + PRIOR, failures + PRIOR
        return beta_quantile(tail, a, b), beta_quantile(1 - tail, a, b)

    def columns(self) -> tuple[Array, Array]:
        """The counts (successes_M, failures_M) of the M problems seen, each float64 [M]."""
        counts_M2 = np.array(list(self.counts.values()), np.float64).reshape(-1, 2)
        return counts_M2[:, 0], counts_M2[:, 1]


def verdicts(groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]]) -> list[Verdict]:
    """One verdict per group [P] from its outcomes [P][G]; completions that the verifier failed on are not counted."""
    correct = [[outcome.correct for outcome in row] for row in outcomes]
    return [(group.problem.id, row.count(True), row.count(False)) for group, row in zip(groups, correct, strict=True)]


def update(rates: PassRates, found: Iterable[Verdict], *, half_life: float = 1.0) -> PassRates:
    """The pass rates after some more groups.

    Args:
        rates: the pass rates before these groups.
        found: the groups in the order of their steps; one call for several steps gives the same as one call each.
        half_life: visits to a problem after which its earlier counts weigh half, > 0; infinity = they never fade.
    """
    kept, counts = 0.5 ** (1 / half_life), dict(rates.counts)
    for problem_id, correct, wrong in found:
        successes, failures = counts.get(problem_id, (0.0, 0.0))
        counts[problem_id] = (successes * kept + correct, failures * kept + wrong)
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
    return math.exp(log_front) / a * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))), with enough terms that the rest is below a rounding error."""
    terms = 40 + int(4 * math.sqrt(max(a, b)))
    value = 1.0
    for m in range(terms, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        value = 1 + odd / (1 + even / value)
    return 1 / value
