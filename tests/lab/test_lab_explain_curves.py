"""The curves of the explainers against their definitions: objective by ratio, KL by log-ratio, weight by pass rate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from explaining import ask, lab


@pytest.fixture
def page(tmp_path: Path) -> TestClient:
    return lab(tmp_path)


# The derivative of r A by log r is r A, and nothing where the clip cuts. SAPO: 4 / 2 of a sigmoid of 2, and a slope of
# 4 * 0.104994 times the ratio. CISPO: the weight is cut at 1.2, the gradient is that weight times A.
@pytest.mark.parametrize(
    ("query", "points", "dead", "bounds", "ends"),
    [
        (
            "advantage=2&clip_low=0.2&clip_high=0.28",
            {0.5: (1.0, 1.0), 1.0: (2.0, 2.0), 2.0: (2.56, 0.0)},
            [[1.28, 2.5]], [0.8, 1.28], [0, 2.5],
        ),
        ("advantage=-1", {0.5: (-0.8, 0.0), 2.0: (-2.0, -2.0)}, [[0, 0.8]], [0.8, 1.2], [0, 2.5]),
        # What is worse than 1.5 A is cut as well.
        ("advantage=-1&dual_clip=1.5", {2.0: (-1.5, 0.0)}, [[0, 0.8], [1.5, 2.5]], [0.8, 1.2, 1.5], [0, 2.5]),
        ("advantage=-1&dual_clip=3", {}, [[0, 0.8], [3, 3.6]], [0.8, 1.2, 3], [0, 3.6]),
        # gspo: the axis is 2.5 times as wide as its bounds.
        (
            "advantage=-1&clip_low=0.0003&clip_high=0.0004",
            {1.0: (-1.0, -1.0)}, [[0.999, 0.9997]], [0.9997, 1.0004], [0.999, 1.001],
        ),
        ("advantage=-1&clip_low=0&clip_high=0", {}, [[0, 1]], [1], [0, 2.5]),
        ("advantage=3&surrogate=plain", {2.0: (6.0, 6.0)}, [], [], [0, 2.5]),
        ("advantage=3&surrogate=cispo", {2.0: (1.2 * 3 * math.log(2), 3.6)}, [], [0.8, 1.2], [0, 2.5]),
        ("advantage=-1&surrogate=cispo&clip_low=1&clip_high=4", {}, [], [0, 5], [0, 6]),
        ("advantage=3&surrogate=sapo&tau_pos=2", {2.0: (3 * 1.7615942, 3 * 2 * 0.4199743)}, [], [], [0, 2.5]),
        (
            "advantage=-1&surrogate=gmpo&clip_low=0.33&clip_high=0.49",
            {2.0: (-2.0, -2.0)}, [[0, 0.67]], [0.67, 1.49], [0, 2.5],
        ),
        ("advantage=0", {}, [[0, 2.5]], [0.8, 1.2], [0, 2.5]),
    ],
)  # fmt: skip
def test_the_objective_of_a_token_by_its_ratio(
    page: TestClient,
    query: str,
    points: Mapping[float, tuple[float, float]],
    dead: list[list[float]],
    bounds: list[float],
    ends: list[float],
) -> None:
    found = ask(page, f"objective?{query}")
    ratios = found["ratio"]
    assert [ratios[0], ratios[-1]] == pytest.approx(ends)
    assert len(ratios) > 250
    assert all(one < other for one, other in itertools.pairwise(ratios))
    assert found["bounds"] == pytest.approx(bounds)
    assert {1.0, *found["bounds"]} <= set(ratios)
    assert found["dead"] == [pytest.approx(side) for side in dead]
    for ratio, expected in points.items():
        place = ratios.index(ratio)
        assert (found["objective"][place], found["gradient"][place]) == pytest.approx(expected)
    assert (found["objective"][0] is None) == ("cispo" in query)  # log 0


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


def groups(size: int, rate: float) -> list[tuple[float, tuple[int, ...]]]:
    """Every group there is of so many rewards, with its chance."""
    everyone = itertools.product([0, 1], repeat=size)
    return [(math.prod(rate if reward else 1 - rate for reward in one), one) for one in everyone]


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
    place = rates.index(0.3)
    expected = sum(chance * sum(abs(one - sum(group) / 8) for one in group) for chance, group in groups(8, 0.3))
    assert algorithms["dr_grpo"]["weight"][place] == pytest.approx(expected, abs=1e-6)


def test_the_weight_of_grpo_over_that_of_dr_grpo(page: TestClient) -> None:
    """Two rewards that differ have a deviation of 1/2, one of four of sqrt(3)/4."""
    assert ask(page, "pass_rate?group_size=2")["quotient"] == [None, *[pytest.approx(2.0, rel=1e-5)] * 99, None]
    # Of four: 1 or 3 right with a chance of 0.2952, 2 with 0.0486; distances from the mean of 1.5 and 2 in all.
    found = ask(page, "pass_rate?group_size=4")
    of_four = (0.2952 * 1.5 / (math.sqrt(3) / 4) + 0.0486 * 2 / 0.5) / (0.2952 * 1.5 + 0.0486 * 2)
    for rate in (0.1, 0.9):
        assert found["quotient"][found["pass_rate"].index(rate)] == pytest.approx(of_four, rel=1e-5)
