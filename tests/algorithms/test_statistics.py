"""pass@k by enumeration, intervals by published numbers and by how often they hold the truth."""

from __future__ import annotations

from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.evaluation import mean_interval, pass_at_k, score_interval, wilson_interval
from grouprl.evaluation.statistics import pass_counts


@pytest.mark.parametrize("total", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_completion(total: int) -> None:
    for correct in range(total + 1):
        drawn = [True] * correct + [False] * (total - correct)
        for k in range(1, total + 1):
            subsets = [any(subset) for subset in combinations(drawn, k)]
            assert pass_at_k(correct, total, k) == sum(subsets) / len(subsets)


@pytest.mark.parametrize(("samples", "counts"), [(1, (1,)), (2, (1, 2)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12))])
def test_of_so_many_samples_these_pass_at_k_are_reported_each_once(samples: int, counts: tuple[int, ...]) -> None:
    assert pass_counts(samples) == counts


def test_pass_at_k_keeps_its_precision_where_factorials_overflow() -> None:
    assert pass_at_k(1, 10**6, 1) == 1e-6
    assert pass_at_k(2, 10**4, 5000) == pytest.approx(1 - (5000 * 4999) / (10**4 * 9999), rel=1e-15)


@pytest.mark.parametrize(
    ("correct", "total", "k"), [(1, 2, 3), (3, 2, 1), (-1, 2, 1), (0, -1, 1), (1, 2, 0), (1, 2, -1)]
)
def test_pass_at_k_refuses_what_makes_no_sense(correct: int, total: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass_at_k: expected"):
        pass_at_k(correct, total, k)


@given(st.integers(1, 2000), st.data(), st.floats(0.5, 0.999))
def test_wilson_ends_are_where_the_score_test_just_accepts(total: int, data: st.DataObject, confidence: float) -> None:
    successes = data.draw(st.integers(0, total))
    low, high = wilson_interval(successes, total, confidence)
    assert 0 <= low <= successes / total <= high <= 1
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    for end in (low, high):
        assert (successes / total - end) ** 2 == pytest.approx(z * z * end * (1 - end) / total, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("successes", "total", "confidence"), [(0, 0, 0.95), (3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0), (1, 2, 0.0)]
)
def test_wilson_refuses_what_makes_no_sense(successes: int, total: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        wilson_interval(successes, total, confidence)


@pytest.mark.parametrize(
    ("degrees", "confidence", "quantile"),
    # The t tables that every statistics book prints.
    [
        (1, 0.95, 12.706), (2, 0.95, 4.303), (3, 0.99, 5.841), (4, 0.9, 2.132), (9, 0.95, 2.262), (30, 0.95, 2.042),
        (499, 0.95, 1.965),
    ],
)  # fmt: skip
def test_mean_interval_has_the_width_of_the_t_table(degrees: int, confidence: float, quantile: float) -> None:
    values = [0.0, 1.0] + [0.5] * (degrees - 1)  # mean 1/2, squared deviations sum to 1/2
    low, high = mean_interval(values, confidence)
    assert (low + high) / 2 == pytest.approx(0.5)
    assert (high - low) / 2 / (0.5 / degrees / (degrees + 1)) ** 0.5 == pytest.approx(quantile, abs=6e-4)


def test_mean_interval_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="at least 2 values"):
        mean_interval([1.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        mean_interval([1.0, 2.0], 95)


@pytest.mark.parametrize("problems", [5, 20, 100])
@pytest.mark.parametrize(
    "rates",
    [  # pass rates of the population's problems, each as likely
        [0.5],
        [0.99],
        [0.999],
        [0.0] + [1.0] * 99,  # one in a hundred is hopeless
        [0.0] + [0.99] * 99,
        [0.5] + [1.0] * 19,
        [0.0] * 19 + [0.2],
        [0.02, 0.1, 0.5, 0.9, 0.98],
    ],
)
def test_the_interval_of_clustered_shares_covers_the_true_mean(problems: int, rates: list[float]) -> None:
    # Wilson's own coverage of a share near 1 oscillates and falls to 0.9 (Brown, Cai and DasGupta 2001, figure 3);
    # Student's interval covers 0.04 to 0.6 of the time in the second to fifth population.
    generator = np.random.default_rng(7)
    drawn = generator.binomial(8, generator.choice(rates, (400, problems))) / 8
    covered = 0
    for shares in drawn.tolist():
        low, high = score_interval(shares)
        assert 0.0 <= low <= high <= 1.0
        assert high > low
        covered += low <= sum(rates) / len(rates) <= high
    assert covered / 400 >= 0.88


def test_the_interval_of_shares_is_wilsons_for_zeros_and_ones_and_moves_with_its_bounds() -> None:
    for right, total in ((0, 1), (1, 1), (3, 10), (499, 500), (500, 500)):
        values = [1.0] * right + [0.0] * (total - right)
        assert score_interval(values) == pytest.approx(wilson_interval(right, total), abs=1e-12)
    low, high = score_interval([0.0, 0.25, 1.0])
    assert score_interval([-10.0, -5.0, 10.0], -10.0, 10.0) == pytest.approx((20 * low - 10, 20 * high - 10))
    with pytest.raises(ValueError, match="expected numbers in"):
        score_interval([2.0])


def test_equal_numbers_have_an_interval_with_a_width() -> None:
    for value in (0.0, 0.5, 1.0, -3.0, 7.0):
        low, high = mean_interval([value] * 500)
        assert low <= value <= high
        assert 0.001 < high - low < 0.1
