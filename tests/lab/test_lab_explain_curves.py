"""The curves of the explainers against their definitions: objective by ratio, KL by log-ratio, weight by pass rate."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from explaining import ask, lab


@pytest.fixture
def page(tmp_path: Path) -> TestClient:
    return lab(tmp_path)


# The objective


def at(found: dict[str, Any], ratio: float) -> tuple[float, float]:
    place = found["ratio"].index(ratio)
    return found["objective"][place], found["gradient"][place]


def test_the_clipped_objective_of_a_good_token(page: TestClient) -> None:
    found = ask(page, "objective?advantage=2&clip_low=0.2&clip_high=0.28")
    assert len(found["ratio"]) == 251
    assert (found["ratio"][0], found["ratio"][-1]) == (0, 2.5)
    assert {0.8, 1.0, 1.28} <= set(found["ratio"])
    # The derivative of r A by log r is r A: below 1.28 that, above it nothing.
    assert at(found, 0.5) == pytest.approx((1.0, 1.0))
    assert at(found, 1.0) == pytest.approx((2.0, 2.0))
    assert at(found, 2.0) == pytest.approx((2.56, 0.0))
    assert found["dead"] == [[1.28, 2.5]]


def test_the_clipped_objective_of_a_bad_token(page: TestClient) -> None:
    found = ask(page, "objective?advantage=-1")
    assert at(found, 0.5) == pytest.approx((-0.8, 0.0))
    assert at(found, 2.0) == pytest.approx((-2.0, -2.0))
    assert found["dead"] == [[0, 0.8]]
    # With a dual clip at 1.5, what is worse than 1.5 A is cut as well.
    twice = ask(page, "objective?advantage=-1&dual_clip=1.5")
    assert at(twice, 2.0) == pytest.approx((-1.5, 0.0))
    assert twice["dead"] == [[0, 0.8], [1.5, 2.5]]


@pytest.mark.parametrize(
    ("query", "first", "last", "bounds"),
    [
        ("clip_low=0.0003&clip_high=0.0004", 0.999, 1.001, [0.9997, 1.0004]),  # gspo: 2.5 times as far as its bounds
        ("clip_low=0.2&clip_high=0.28", 0, 2.5, [0.8, 1.28]),
        ("clip_low=0.2&clip_high=0.2&dual_clip=3", 0, 3.6, [0.8, 1.2, 3]),
        ("surrogate=cispo&clip_low=1&clip_high=4", 0, 6, [0, 5]),
        ("surrogate=plain", 0, 2.5, []),
        ("clip_low=0&clip_high=0", 0, 2.5, [1, 1]),
    ],
)
def test_the_axis_holds_the_bounds(
    page: TestClient, query: str, first: float, last: float, bounds: list[float]
) -> None:
    found = ask(page, f"objective?advantage=-1&{query}")
    ratios = found["ratio"]
    assert (ratios[0], ratios[-1]) == (pytest.approx(first), pytest.approx(last))
    assert len(ratios) > 250
    assert all(one < other for one, other in itertools.pairwise(ratios))
    assert found["bounds"] == pytest.approx(sorted(set(bounds)))
    assert {1.0, *found["bounds"]} <= set(ratios)
    # The sign of the advantage decides which bounds act, not what can be seen.
    assert [ask(page, f"objective?advantage=2&{query}")["ratio"][place] for place in (0, -1)] == [ratios[0], ratios[-1]]


def test_narrow_bounds_have_their_dead_side(page: TestClient) -> None:
    found = ask(page, "objective?advantage=-1&clip_low=0.0003&clip_high=0.0004")
    assert found["dead"] == [[pytest.approx(0.999), pytest.approx(0.9997)]]
    assert at(found, 1.0) == pytest.approx((-1.0, -1.0))


def test_the_other_surrogates_are_never_dead(page: TestClient) -> None:
    plain = ask(page, "objective?advantage=3&surrogate=plain")
    assert at(plain, 2.0) == pytest.approx((6.0, 6.0))
    # CISPO: the weight is cut at 1.2, the gradient is that weight times A.
    cispo = ask(page, "objective?advantage=3&surrogate=cispo")
    assert at(cispo, 2.0) == pytest.approx((1.2 * 3 * math.log(2), 3.6))
    assert cispo["objective"][0] is None  # log 0
    # SAPO: 4 / 2 of a sigmoid of 2, and a slope of 4 * 0.104994 times the ratio
    sapo = ask(page, "objective?advantage=3&surrogate=sapo&tau_pos=2")
    assert at(sapo, 2.0) == pytest.approx((3 * 1.7615942, 3 * 2 * 0.4199743))
    assert (sapo["bounds"], plain["dead"], cispo["dead"], sapo["dead"]) == ([], [], [], [])


def test_a_geometric_mean_of_one_token_is_clipped(page: TestClient) -> None:
    gmpo = ask(page, "objective?advantage=-1&surrogate=gmpo&clip_low=0.33&clip_high=0.49")
    assert (gmpo["bounds"], gmpo["dead"]) == (pytest.approx([0.67, 1.49]), [[0, pytest.approx(0.67)]])
    assert at(gmpo, 2.0) == pytest.approx((-2.0, -2.0))


def test_without_an_advantage_nothing_moves(page: TestClient) -> None:
    assert ask(page, "objective?advantage=0")["dead"] == [[0, 2.5]]


# The KL


def test_the_estimators_of_a_token(page: TestClient) -> None:
    found = ask(page, "kl")
    assert (found["log_ratio"][0], found["log_ratio"][-1], len(found["log_ratio"])) == (-3, 3, 121)
    for place, x in enumerate(found["log_ratio"]):
        values = {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}
        slopes = {"k1": 1.0, "k2": -x, "k3": 1 - math.exp(x)}  # by the policy's log-prob: -d / dx
        for kind in values:
            assert found["kinds"][kind]["value"][place] == pytest.approx(values[kind], abs=1e-12)
            assert found["kinds"][kind]["gradient"][place] == pytest.approx(slopes[kind], abs=1e-12)


def test_the_estimators_over_a_whole_distribution(page: TestClient) -> None:
    """Worked in docs/algorithms.md: k1 and k3 are unbiased; as losses, k1 pulls nowhere and k3 the other way round."""
    pair = ask(page, "kl")["pair"]
    exact = sum(p * math.log(p / q) for p, q in zip(pair["policy"], pair["reference"], strict=True))
    assert pair["kl"] == pytest.approx(exact)
    assert pair["reverse_kl"] == pytest.approx(
        sum(q * math.log(q / p) for p, q in zip(pair["policy"], pair["reference"], strict=True))
    )
    means = [pair["kinds"][kind]["expectation"] for kind in ("k1", "k2", "k3")]
    assert means == pytest.approx([exact, 0.1568, exact], abs=5e-5)
    assert pair["kinds"]["k1"]["gradient"] == pytest.approx([0, 0, 0], abs=1e-12)
    assert pair["kinds"]["k2"]["gradient"] == pytest.approx(pair["exact_gradient"])
    assert pair["kinds"]["k3"]["gradient"] == pytest.approx(pair["reverse_gradient"])
    assert pair["reverse_gradient"] == pytest.approx([0.237, -0.022, -0.215], abs=1e-3)


# The pass rate


def test_the_weight_of_a_group_by_pass_rate(page: TestClient) -> None:
    """The table of docs/evidence.md is the mean |advantage| of a group of 8."""
    found = ask(page, "pass_rate?group_size=8")
    rates, algorithms = found["pass_rate"], found["algorithms"]
    table = {0.02: (0.101, 0.034, 0.039), 0.1: (0.419, 0.158, 0.180), 0.5: (0.928, 0.438, 0.500)}
    for rate, row in table.items():
        for name, mean in zip(("grpo", "dr_grpo", "rloo"), row, strict=True):
            for place in (rates.index(rate), rates.index(round(1 - rate, 2))):
                assert algorithms[name]["weight"][place] / 8 == pytest.approx(mean, abs=6e-4)
    assert algorithms["reinforce"]["weight"] == pytest.approx([8 * rate for rate in rates])
    assert found["signal"] == pytest.approx([1 - rate**8 - (1 - rate) ** 8 for rate in rates])


def test_the_weight_is_the_sum_over_every_group_there_is(page: TestClient) -> None:
    found = ask(page, "pass_rate?group_size=3&algorithms=dr_grpo")
    place = found["pass_rate"].index(0.3)
    expected = 0.0
    for rewards in itertools.product([0, 1], repeat=3):
        chance = math.prod(0.3 if reward else 0.7 for reward in rewards)
        expected += chance * sum(abs(reward - sum(rewards) / 3) for reward in rewards)
    assert found["algorithms"]["dr_grpo"]["weight"][place] == pytest.approx(expected, abs=1e-6)


def test_the_weight_of_grpo_over_that_of_dr_grpo(page: TestClient) -> None:
    """Two rewards that differ have a deviation of 1/2, one of three of sqrt(2)/3, one of four of sqrt(3)/4."""
    for size, expected in ((2, 2.0), (3, 3 / math.sqrt(2))):
        quotient = ask(page, f"pass_rate?group_size={size}&algorithms=rloo")["quotient"]
        assert quotient == [None, *[pytest.approx(expected, rel=1e-5)] * 99, None]
    # Of four: 1 or 3 right with a chance of 0.2952, 2 with 0.0486; distances from the mean of 1.5 and 2 in all.
    found = ask(page, "pass_rate?group_size=4")
    of_four = (0.2952 * 1.5 / (math.sqrt(3) / 4) + 0.0486 * 2 / 0.5) / (0.2952 * 1.5 + 0.0486 * 2)
    for rate in (0.1, 0.9):
        assert found["quotient"][found["pass_rate"].index(rate)] == pytest.approx(of_four, rel=1e-5)


def test_how_noisy_mean_and_deviation_of_two_rewards_are(page: TestClient) -> None:
    """Both right or both wrong: means 1 and 0, deviation 0; else a mean and a deviation of 1/2."""
    found = ask(page, "noise")
    assert [one["size"] for one in found["sizes"]] == [2, 4, 8, 16, 64]
    two, place = found["sizes"][0], found["pass_rate"].index(0.3)
    assert (two["mean"]["expected"][50], two["mean"]["spread"][50]) == pytest.approx((0.5, math.sqrt(1 / 8)))
    assert (two["deviation"]["expected"][50], two["deviation"]["spread"][50]) == pytest.approx((0.25, 0.25))
    assert (two["signal"][50], found["deviation"][50]) == pytest.approx((0.5, 0.5))
    # At a pass rate of 0.3 they differ with a chance of 0.42.
    assert (two["mean"]["expected"][place], two["mean"]["spread"][place]) == pytest.approx((0.3, math.sqrt(0.105)))
    assert two["deviation"]["expected"][place] == pytest.approx(0.21)
    assert two["deviation"]["spread"][place] == pytest.approx(math.sqrt(0.42 * 0.25 - 0.21**2))
    for one in found["sizes"]:  # of K independent rewards
        assert one["mean"]["spread"] == pytest.approx(
            [math.sqrt(p * (1 - p) / one["size"]) for p in found["pass_rate"]]
        )
        assert max(one["deviation"]["expected"]) < 0.5  # too small on average


def test_how_noisy_the_deviation_of_four_rewards_is(page: TestClient) -> None:
    found, rate = ask(page, "noise"), 0.2
    values: list[tuple[float, float]] = []
    for rewards in itertools.product([0, 1], repeat=4):
        chance = math.prod(rate if reward else 1 - rate for reward in rewards)
        values.append((chance, statistics.pstdev(rewards)))
    mean = sum(chance * value for chance, value in values)
    spread = math.sqrt(sum(chance * (value - mean) ** 2 for chance, value in values))
    of, place = found["sizes"][1]["deviation"], found["pass_rate"].index(rate)
    assert (of["expected"][place], of["spread"][place]) == pytest.approx((mean, spread))
