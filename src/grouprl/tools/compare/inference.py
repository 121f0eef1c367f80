"""Differences over problems and seeds together, and what several of them at once can say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grouprl.evaluation.statistics import t_probability, t_quantile


@dataclass(frozen=True)
class CrossedDifference:
    """The mean of differences that are paired by problem and by seed, with its standard error."""

    mean: float
    error: float | None  # None where nothing is known of the spread: one seed, or equal differences
    seeds: int
    problems: int  # 1 for a metric of a whole run
    by_seed: tuple[float, ...] = ()  # the mean difference of each seed, in the order of the rows

    @property
    def degrees(self) -> int:
        """Degrees of freedom of Student's distribution: of the factor with fewer levels, which is on the safe side."""
        return min(count for count in (self.seeds, self.problems) if count > 1) - 1

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Student's interval; None without a standard error."""
        if self.error is None:
            return None
        margin = t_quantile(0.5 + confidence / 2, self.degrees) * self.error
        return self.mean - margin, self.mean + margin

    @property
    def p_value(self) -> float | None:
        """The chance of a mean at least as far from 0 if there were no difference; None without a standard error."""
        return None if self.error is None else t_probability(self.mean / self.error, self.degrees)


def crossed_difference(differences_SP: Sequence[Sequence[float]]) -> CrossedDifference:
    """The mean over seeds and problems, which both were drawn at random, every seed with the same problems.

    Its variance is that of the means of the seeds, plus that of the means of the problems, less that of what neither
    explains, which both contain (two-way clustering, Cameron, Gelbach and Miller 2011); never less than the larger of
    the first two. So the interval says something about other seeds and other problems.

    Args:
        differences_SP: a row for each seed, a column for each problem; of a metric of whole runs one column.
    """
    values_SP = np.asarray(differences_SP, np.float64)
    seeds, problems = values_SP.shape
    mean, seeds_S, problems_P = values_SP.mean(), values_SP.mean(1), values_SP.mean(0)
    differences = tuple(seeds_S.tolist())
    if seeds < 2 or not np.ptp(values_SP):
        return CrossedDifference(float(mean), None, seeds, problems, differences)
    by_seed = seeds_S.var(ddof=1) / seeds
    by_problem = problems_P.var(ddof=1) / problems if problems > 1 else 0.0
    rest_SP = values_SP - seeds_S[:, None] - problems_P + mean
    both = (rest_SP**2).sum() / ((seeds - 1) * max(1, problems - 1)) / values_SP.size
    variance = max(by_seed + by_problem - both, by_seed, by_problem)
    return CrossedDifference(float(mean), math.sqrt(variance) if variance else None, seeds, problems, differences)


def simultaneous_confidence(count: int, confidence: float = 0.95) -> float:
    """The confidence of each of `count` intervals so that all are right at once with `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / count


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for how many they are (Holm 1979), in their order.

    A difference with a corrected p below 0.05 is found among all of them with at most 5 % chance of any wrong one.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        corrected[at] = highest
    return corrected
