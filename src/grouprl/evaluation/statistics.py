"""pass@k and confidence intervals for shares and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

from grouprl.curriculum.pass_rates import beta_quantile


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


def wilson_interval(successes: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval (low, high) for a share counted as `successes` of `total` yes/no outcomes (Wilson 1927).

    It stays inside [0, 1] and keeps a width at 0 % and 100 %, where the plain normal interval has none.

    Raises:
        ValueError: total is 0, successes is outside 0..total, or confidence is outside (0, 1).
    """
    if total < 1 or not 0 <= successes <= total:
        raise ValueError(f"wilson_interval: expected 0 <= successes <= total >= 1, got {successes} of {total}")
    z = NormalDist().inv_cdf(_upper_probability(confidence))
    share = successes / total
    center = share + z * z / (2 * total)
    margin = z * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    scale = 1 + z * z / total
    # The share itself bounds both ends: without it rounding leaves a share of 0 or 1 just outside.
    return max(0.0, min(share, (center - margin) / scale)), min(1.0, max(share, (center + margin) / scale))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval (low, high) for the mean of independent numbers, with n - 1 degrees of freedom.

    For yes/no outcomes use `wilson_interval`. The ends may lie outside the range of the numbers, and equal numbers give
    an interval without width.

    Raises:
        ValueError: there are fewer than two numbers, or confidence is outside (0, 1).
    """
    upper = _upper_probability(confidence)
    if len(values) < 2:
        raise ValueError(f"mean_interval: expected at least 2 values, got {len(values)}")
    center = fmean(values)
    margin = _t_quantile(upper, len(values) - 1) * stdev(values, center) / math.sqrt(len(values))
    return center - margin, center + margin


def _upper_probability(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a value between 0 and 1, got {confidence}")
    return 0.5 + confidence / 2


def _t_quantile(probability: float, degrees: int) -> float:
    # t^2 / (degrees + t^2) of a Student's t has the distribution Beta(1/2, degrees/2).
    share = beta_quantile(2 * probability - 1, 0.5, degrees / 2)
    return math.sqrt(degrees * share / (1 - share))
