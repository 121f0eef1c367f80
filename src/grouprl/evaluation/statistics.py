"""pass@k and confidence intervals for shares and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

from grouprl.tasks.curriculum import beta_probability, beta_quantile


def pass_at_k(correct: int, total: int, k: int) -> float:
    """The chance that at least one of `k` completions is correct, estimated from `total` completions of one problem.

    The estimate is unbiased (Chen et al. 2021, arXiv:2107.03374, equation 1): it is the share of the k-subsets of the
    `total` completions that hold a correct one. It is in [0, 1] and exact to the last bit for any size.

    Raises:
        ValueError: correct is outside 0..total, or k is outside 1..total.

    >>> pass_at_k(correct=1, total=4, k=2)
    0.5
    """
    if not 0 <= correct <= total:
        raise ValueError(f"pass_at_k: expected 0 <= correct <= total, got correct={correct}, total={total}")
    if not 1 <= k <= total:
        raise ValueError(f"pass_at_k: expected 1 <= k <= total, got k={k}, total={total}")
    subsets = math.comb(total, k)
    return (subsets - math.comb(total - correct, k)) / subsets


def pass_counts(samples: int) -> tuple[int, ...]:
    """The k of which an evaluation with so many samples of a problem reports pass@k: powers of two, and `samples`.

    >>> pass_counts(12)
    (1, 2, 4, 8, 12)
    """
    return (*(2**power for power in range(samples.bit_length()) if 2**power < samples), samples)


def wilson_interval(successes: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval (low, high) for a share counted as `successes` of `total` yes/no outcomes (Wilson 1927).

    It stays inside [0, 1] and keeps a width at 0 % and 100 %, where the plain normal interval has none.

    Raises:
        ValueError: total is 0, successes is outside 0..total, or confidence is outside (0, 1).
    """
    if total < 1 or not 0 <= successes <= total:
        raise ValueError(f"wilson_interval: expected 0 <= successes <= total >= 1, got {successes} of {total}")
    return _wilson(successes / total, total, NormalDist().inv_cdf(_upper_probability(confidence)))


def score_interval(
    values: Sequence[float], low: float = 0.0, high: float = 1.0, confidence: float = 0.95
) -> tuple[float, float]:
    """Interval for the mean of independent numbers in [low, high], such as the shares of problems: Wilson's, clustered.

    Wilson's interval with an effective count (Korn and Graubard 1998): the count divided by the design effect, which is
    the variance of the numbers over that of yes/no outcomes with their mean. Near a bound the numbers hardly know their
    variance, so it is estimated with z^2/2 more numbers at each bound (as in Agresti and Coull 1998). Numbers that are
    all equal have a width. Numbers at the bounds alone give `wilson_interval`.

    Raises:
        ValueError: there is no number, one lies outside [low, high], the bounds are equal, or confidence is outside
            (0, 1).
    """
    z = NormalDist().inv_cdf(_upper_probability(confidence))
    if not values or not low < high or not low <= min(values) <= max(values) <= high:
        raise ValueError(
            f"score_interval: expected numbers in [{low}, {high}], at least one, got {list(values)!r:.100}"
        )
    shares = [min(1.0, max(0.0, (value - low) / (high - low))) for value in values]
    share, count = math.fsum(shares) / len(shares), len(shares) + z * z
    center = (math.fsum(shares) + z * z / 2) / count
    variance = (math.fsum(value * value for value in shares) + z * z / 2) / count - center * center
    ends = _wilson(share, len(shares) * max(1.0, center * (1 - center) / variance), z)
    lower, upper = (low + (high - low) * end for end in ends)
    mean = math.fsum(values) / len(values)
    return max(low, min(lower, mean)), min(high, max(upper, mean))


def _wilson(share: float, total: float, z: float) -> tuple[float, float]:
    center = share + z * z / (2 * total)
    margin = z * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    scale = 1 + z * z / total
    # The share itself bounds both ends: without it rounding leaves a share of 0 or 1 just outside.
    return max(0.0, min(share, (center - margin) / scale)), min(1.0, max(share, (center + margin) / scale))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval (low, high) for the mean of independent numbers, with n - 1 degrees of freedom.

    For yes/no outcomes use `wilson_interval`, for numbers with bounds `score_interval`. The ends may lie outside the
    range of the numbers. Equal numbers do not know their spread: they get the `score_interval` of numbers that could
    have been 0 or 1 as well.

    Raises:
        ValueError: there are fewer than two numbers, or confidence is outside (0, 1).
    """
    upper = _upper_probability(confidence)
    if len(values) < 2:
        raise ValueError(f"mean_interval: expected at least 2 values, got {len(values)}")
    if min(values) == max(values):
        return score_interval(values, min(0.0, *values), max(1.0, *values), confidence)
    center = fmean(values)
    margin = t_quantile(upper, len(values) - 1) * stdev(values, center) / math.sqrt(len(values))
    return center - margin, center + margin


def _upper_probability(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a value between 0 and 1, got {confidence}")
    return 0.5 + confidence / 2


def t_quantile(probability: float, degrees: int) -> float:
    """The t that Student's distribution stays below with this probability, which is at least 0.5."""
    # t^2 / (degrees + t^2) of a Student's t has the distribution Beta(1/2, degrees/2).
    share = beta_quantile(2 * probability - 1, 0.5, degrees / 2)
    return math.sqrt(degrees * share / (1 - share))


def t_probability(t: float, degrees: int) -> float:
    """The chance that a Student's t is at least as far from 0 as this one: the p-value of both sides."""
    return beta_probability(degrees / (degrees + t * t), degrees / 2, 0.5)
