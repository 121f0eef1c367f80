"""What a run has found out about each problem it visited: its pass rate, how sure that is, and what it is worth.

The pass rate p of a problem (the chance that a completion of it is correct) has the posterior Beta(successes + 1/2,
failures + 1/2). The prior is Jeffreys' Beta(1/2, 1/2), because pass rates are U-shaped: most problems of a data set are
nearly always solved or nearly never, and the flat prior takes an all-wrong group for less than it says.

The policy moves, so at every visit the earlier counts of that problem fade: what was counted `half_life` visits ago
counts half. Everything here is a pure function of the verdicts in the order in which they were recorded, so that a
resumed run rebuilds it from its record, to the last bit.
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
HOPELESS, SOLVED = 0.1, 0.9  # posterior means up to, and from, which a problem counts as such

Verdict = tuple[str, int, int]
"""Of one group: the problem's id, how many completions are correct, and how many are not."""

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class PassRates:
    """The faded counts of every problem seen so far, in the order in which they were first met.

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
        """(low, high) that holds the pass rate with probability `mass`, as much of the rest below it as above.

        Raises KeyError for a problem that was never visited.
        """
        successes, failures = self.counts[problem_id]
        tail = (1 - mass) / 2
        a, b = successes + PRIOR, failures + PRIOR
        return beta_quantile(tail, a, b), beta_quantile(1 - tail, a, b)

    def columns(self) -> tuple[Array, Array]:
        """(successes_M, failures_M): the counts of the M problems seen, each float64 [M]."""
        counts_M2 = np.array(list(self.counts.values()), np.float64).reshape(-1, 2)
        return counts_M2[:, 0], counts_M2[:, 1]


def verdicts(groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]]) -> list[Verdict]:
    """What the verifier said of the groups [P] by their outcomes [P][G]; where it failed, it counts as neither."""
    said = [[outcome.correct for outcome in row] for row in outcomes]
    return [(group.problem.id, row.count(True), row.count(False)) for group, row in zip(groups, said, strict=True)]


def update(rates: PassRates, found: Iterable[Verdict], *, half_life: float = 1.0) -> PassRates:
    """The pass rates after some more groups.

    Args:
        rates: what was known before.
        found: the groups in the order of their step; several steps in one call come to the same as one by one.
        half_life: visits to a problem after which what was counted before counts half, > 0; infinity = never.
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


def curriculum_measures(rates: PassRates) -> dict[str, float]:
    """What a step records of the problems seen so far.

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
    """x with P(p <= x) = probability for p ~ Beta(a, b), by bisection, to the precision of a float64."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if beta_probability(middle, a, b) < probability else (low, middle)
    return high


def beta_probability(x: float, a: float, b: float) -> float:
    """P(p <= x) for p ~ Beta(a, b) and x in [0, 1]: the regularised incomplete beta function.

    Its continued fraction, DLMF 8.17.22, on the side of the mean where that converges fast.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_probability(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))), from its tail: enough terms for the tail to be below a rounding error."""
    terms = 40 + int(4 * math.sqrt(max(a, b)))
    value = 1.0
    for m in range(terms, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        value = 1 + odd / (1 + even / value)
    return 1 / value
