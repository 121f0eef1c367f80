"""Paired differences: worked numbers, a simulation of the intervals' coverage, and results problem by problem."""

from __future__ import annotations

import random
from itertools import combinations
from statistics import fmean
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grouprl.evaluation import Difference, ProblemResults, compare_results, paired_difference
from grouprl.evaluation.paired import mean_by_problem, paired_by_name


def test_a_worked_example() -> None:
    # Student's sleep data (Biometrika 1908, table I): hours gained with two drugs by ten people.
    # R's t.test(paired = TRUE) prints a mean difference of -1.58 and the interval -2.4598858, -0.7001142.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(-1.58)
    assert found.interval == pytest.approx((-2.4598858, -0.7001142), abs=1e-6)
    assert found.pairs == 10


def test_pairs_cancel_the_hardness_of_problems() -> None:
    hardness = [0.0, 10.0, 20.0, 30.0]
    found = paired_difference([h + d for h, d in zip(hardness, (1, 2, 1, 2), strict=True)], hardness)
    assert found.mean == 1.5
    low, high = found.interval or (0.0, 0.0)
    assert high - low < 2  # unpaired it would be about 40


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=30), st.floats(-10, 10))
def test_swapping_turns_the_sign_and_shifting_moves_the_ends(pairs: list[tuple[float, float]], shift: float) -> None:
    ours, theirs = (list(side) for side in zip(*pairs, strict=True))
    differences = [mine - other for mine, other in pairs]
    spread = max(differences) - min(differences)
    assume(spread == 0 or spread > 1e-6)  # rounding makes smaller ones equal
    one, other = paired_difference(ours, theirs), paired_difference(theirs, ours)
    moved = paired_difference([value + shift for value in ours], theirs)
    assert one.interval is not None
    assert other.interval is not None
    assert moved.interval is not None
    assert one.mean == pytest.approx(-other.mean, abs=1e-9)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]), abs=1e-6)
    assert moved.interval == pytest.approx(tuple(end + shift for end in one.interval), abs=1e-6)
    assert one.interval[0] <= one.mean <= one.interval[1]


@pytest.mark.parametrize("pairs", [3, 40])
def test_the_interval_covers_the_true_mean_as_often_as_its_confidence_says(pairs: int) -> None:
    # Differences drawn from a normal distribution of mean 0.3, on top of hardness that varies ten times as much.
    noise, held, rounds = random.Random(pairs), 0, 200
    for _ in range(rounds):
        hardness = [noise.gauss(0, 10) for _ in range(pairs)]
        ours = [value + 0.3 + noise.gauss(0, 1) for value in hardness]
        low, high = paired_difference(ours, hardness).interval or (0.0, 0.0)
        held += low <= 0.3 <= high
    assert held / rounds == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / rounds) ** 0.5)


def test_one_pair_has_no_interval_and_equal_differences_have_a_width() -> None:
    assert paired_difference([3.0], [1.0]) == Difference(2.0, None, 1)
    found = paired_difference([1.0, 2.0], [0.0, 1.0])
    assert (found.mean, found.pairs) == (1.0, 2)
    assert found.interval is not None
    assert found.interval[0] < 0.5 < 1.5 < found.interval[1]  # two pairs say little
    # 500 problems without a change: Wilson's upper end for none of 500 that became better is 0.76 %.
    none = paired_difference([1.0] * 500, [1.0] * 500).interval
    assert none == pytest.approx((-0.0077, 0.0077), abs=2e-4)
    # Rewards from 0 to 20 could have moved 20 times as far as shares: 20 * 0.762 %.
    wide = paired_difference([0.0, 20.0] * 250, [0.0, 20.0] * 250).interval
    assert wide == pytest.approx((-0.1525, 0.1525), abs=2e-3)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], []), ([1.0, 2.0], [1.0])])
def test_numbers_that_are_no_pairs_are_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match=f"got {len(ours)} and {len(theirs)} values"):
        paired_difference(ours, theirs)


def test_names_are_paired_whatever_their_order() -> None:
    found = paired_by_name({"a": 1.0, "b": 0.0, "c": 1.0}, {"c": 1.0, "d": 1.0, "a": 0.0})
    assert found is not None
    assert (found.mean, found.pairs) == (0.5, 2)  # a: 1 - 0, c: 1 - 1
    assert paired_by_name({"a": 1.0}, {"b": 1.0}) is None


def test_mean_by_problem_keeps_the_problems_that_all_runs_were_evaluated_on() -> None:
    runs = [{"a": 1.0, "b": 0.0, "c": 1.0}, {"b": 1.0, "a": 1.0}, {"a": 0.0, "b": 1.0, "d": 1.0}]
    assert mean_by_problem(runs) == pytest.approx({"a": 2 / 3, "b": 2 / 3})
    assert mean_by_problem([]) == {}


BEFORE = ProblemResults(("p0", "p1", "p2", "p3"), (0, 1, 0, 1), (0, 8, 2, 4), samples=8)
AFTER = ProblemResults(("p3", "p2", "p1", "p9"), (1, 1, 1, 1), (4, 2, 4, 4), samples=4)


def test_two_checkpoints_are_compared_on_the_problems_of_both() -> None:
    found = compare_results(AFTER, BEFORE)
    # p1: 1 - 1, p2: 1 - 0, p3: 1 - 1; sampled p1: 4/4 - 8/8, p2: 2/4 - 2/8, p3: 4/4 - 4/8.
    assert found["greedy_accuracy"].mean == pytest.approx(1 / 3)
    # Deviation of 0, 1, 0 is sqrt(1/3); Student's quantile for 2 degrees of freedom 4.3027.
    assert found["greedy_accuracy"].interval == pytest.approx((1 / 3 - 4.30265 / 3, 1 / 3 + 4.30265 / 3), abs=1e-4)
    assert found["pass_at_1"].mean == pytest.approx(fmean([0, 1 / 4, 1 / 2]))
    assert found["pass_at_1"].pairs == 3
    greedy = ProblemResults(("p0", "p1"), (1, 1), (0, 0), samples=0)
    assert list(compare_results(greedy, BEFORE)) == ["greedy_accuracy"]


def test_a_problem_without_a_valid_reward_is_in_no_comparison() -> None:
    """p0: 3 - 1, p3: 1 - 4; p1 has no valid reward on one side, p2 on the other."""
    shared = ("p0", "p1", "p2", "p3"), (0,) * 4, (0,) * 4, 4
    ours, theirs = (ProblemResults(*shared, {"reward": r}) for r in ((3.0, None, 5.0, 1.0), (1.0, 2.0, None, 4.0)))
    found = compare_results(ours, theirs)["reward"]
    assert (found.mean, found.pairs) == (-0.5, 2)
    assert ours.reward_by_problem("reward") == {"p0": 3.0, "p2": 5.0, "p3": 1.0}


def test_checkpoints_without_a_problem_in_common_are_refused() -> None:
    with pytest.raises(ValueError, match="none in common"):
        compare_results(AFTER, ProblemResults(("x",), (1,), (0,), samples=0))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_of_a_problem_is_the_share_of_its_subsets_with_a_correct_one(k: int) -> None:
    found = ProblemResults(tuple("abcd"), (0,) * 4, (0, 1, 3, 5), samples=5).pass_at_by_problem(k)
    for name, correct in zip("abcd", (0, 1, 3, 5), strict=True):
        subsets = list(combinations([True] * correct + [False] * (5 - correct), k))
        assert found[name] == sum(map(any, subsets)) / len(subsets)


LINE = {
    "problem_ids": ["a", "b"], "greedy": [1, 0], "correct": [3, 0], "samples": 4, "rewards": {"reward": [0.5, None]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        ({}, True),
        ({"greedy": [], "correct": []}, True),  # no verifier
        ({"correct": [], "samples": 0}, True),
        ({"rewards": {"reward": []}}, True),
        ({"problem_ids": ["a", 2]}, False),
        ({"samples": True}, False),
        ({"samples": 4.0}, False),
        ({"greedy": [1]}, False),
        ({"greedy": []}, False),
        ({"greedy": [1, None]}, False),
        ({"correct": [3]}, False),
        ({"correct": [3, None]}, False),
        ({"rewards": {"reward": [0.5]}}, False),
        ({"rewards": {"reward": [0.5, "1"]}}, False),
        ({"rewards": [0.5, 1.0]}, False),
    ],
)
def test_a_line_of_results_is_read_as_it_was_recorded_or_not_at_all(changes: dict[str, Any], is_read: bool) -> None:
    line = LINE | changes
    found = ProblemResults.read(line)
    assert (found is not None) == is_read
    if found is not None:
        columns = {name: [*values] for name, values in found.rewards.items()}
        assert (found.samples, [*found.greedy], [*found.correct], columns) == (
            *(line["samples"], line["greedy"], line["correct"], line["rewards"]),
        )
