"""Which groups will have a signal, estimated from M completions of each problem.

A group of G completions has a signal if its rewards differ. Up to G = M the estimate is the share of the G-subsets of a
problem's M completions whose totals differ: it is unbiased, as pass@k's estimate (Chen et al. 2021, arXiv:2107.03374).

Beyond M no unbiased estimate exists: 1 - (1-p)^G - p^G has powers of p that M completions do not know. There the pass
rates of all problems have one distribution, the likeliest that explains the counts (Kiefer and Wolfowitz 1956), on a
grid. The counts know M moments of it; the grid decides the rest. In simulations of 200 problems and 16 completions from
five distributions its share is at most 2.5 points off on average at G = 32 and 64, where shares of successes in place
of p are 4 to 20 points too low; the interval, percentiles over draws of problems, holds the true share in 191 of 200
cases (`python benchmarks/data_fit.py --simulate`).

The same distribution tells how much of a count was luck: a problem that was solved in 1 of 16 completions is solved
less often than that where most are never solved, so a choice of problems does not promise more than it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

_ROUNDS = 1000
_DRAWS = 200  # of problems, for an interval
# Pass rates from 0 to 1, close together near both ends, where a small difference decides whether a large group differs.
GRID_K: Array = np.sin(np.linspace(0.0, np.pi / 2, 201)) ** 2


def subset_signal(totals: Sequence[float], group_size: int) -> float:
    """The share of the subsets of `group_size` completions whose totals differ, in [0, 1]; exact.

    >>> subset_signal([1.0, 0.0, 0.0, 0.0], 2)
    0.5
    """
    subsets = comb(len(totals), group_size)
    equal = sum(comb(count, group_size) for count in Counter(totals).values())
    return (subsets - equal) / subsets


def departures(totals: Sequence[float]) -> int:
    """How many of M totals are not the commonest one, at most M // 2: the others of two values.

    Of more than two values it says how surely groups differ at least.
    """
    commonest = Counter(totals).most_common(1)[0][1] if totals else 0
    return min(len(totals) - commonest, len(totals) // 2)


def pass_rate_weights(counts: Sequence[int], samples: Sequence[int], *, folded: bool = False) -> Array:
    """How likely each pass rate of the grid is for each problem, float64 [P, K]; rows sum to 1.

    Args:
        counts: [P], correct completions; with `folded`, `departures`, of which nobody knows on which side they are.
        samples: [P], all completions of a problem.
        folded: whether p and 1 - p give the same counts.
    """
    likelihood_UK, index_P = _likelihood(counts, samples, folded)
    repeats_U = np.bincount(index_P).astype(np.float64)
    weights_UK = likelihood_UK * _likeliest(repeats_U[None], likelihood_UK)
    weights_PK: Array = (weights_UK / weights_UK.sum(1, keepdims=True))[index_P]
    return weights_PK


def _likelihood(counts: Sequence[int], samples: Sequence[int], folded: bool) -> tuple[Array, Any]:
    """The likelihood [U, K] of the U different pairs of counts and samples, and the pair of each problem, [P]."""
    pairs, index_P = np.unique(np.array([counts, samples]).T, axis=0, return_inverse=True)
    k_U1, m_U1 = pairs[:, :1].astype(np.float64), pairs[:, 1:].astype(np.float64)
    likelihood_UK = GRID_K**k_U1 * (1 - GRID_K) ** (m_U1 - k_U1)
    if folded:
        likelihood_UK += GRID_K ** (m_U1 - k_U1) * (1 - GRID_K) ** k_U1
    return likelihood_UK, index_P.reshape(-1)


def _likeliest(repeats_BU: Array, likelihood_UK: Array) -> Array:
    """The likeliest distribution [B, K] of each of B draws of problems, which have each pair so many times."""
    share_BK = np.full((len(repeats_BU), len(GRID_K)), 1 / len(GRID_K))
    for _ in range(_ROUNDS):  # expectation, maximization
        expected_BU = share_BK @ likelihood_UK.T
        share_BK = share_BK * ((repeats_BU / expected_BU) @ likelihood_UK) / repeats_BU.sum(1, keepdims=True)
    return share_BK


def signal_chance(weights_PK: Array, group_size: int) -> Array:
    """The chance of each problem that its next group has a signal, float64 [P]: the mean of 1 - (1-p)^G - p^G."""
    return weights_PK @ _chance(group_size)


def signal_interval(counts: Sequence[int], samples: Sequence[int], group_size: int) -> tuple[float, float]:
    """A 95 % interval (low, high) of the mean of `signal_chance` over problems: percentiles of 200 draws of problems.

    Args:
        counts: [P], `departures`.
        samples: [P], all completions of a problem.
        group_size: more than the completions of a problem; up to them `subset_signal` has no distribution to fit.
    """
    likelihood_UK, index_P = _likelihood(counts, samples, folded=True)
    drawn_BP = np.random.default_rng(0).choice(index_P, (_DRAWS, len(index_P)))
    repeats_BU = np.stack([np.bincount(drawn_P, minlength=len(likelihood_UK)) for drawn_P in drawn_BP])
    means_B = _likeliest(repeats_BU.astype(np.float64), likelihood_UK) @ _chance(group_size)
    low, high = np.percentile(means_B, (2.5, 97.5))
    return float(low), float(high)


def _chance(group_size: int) -> Array:
    return 1 - GRID_K**group_size - (1 - GRID_K) ** group_size
