"""Advantages of any groups: a slow reference, and what shifting, scaling, shuffling and rounding may not change."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.algorithms import group_advantages

NAN = math.nan

REWARD = st.sampled_from([NAN, 0.0, 0.25, 0.5, 1.0, 1.5, -2.0])
ROWS = st.lists(st.tuples(REWARD, st.integers(0, 3)), min_size=1, max_size=24)
OPTIONS = list(
    itertools.product(
        ["mean", "leave_one_out", "batch_mean", "none"],
        ["group_std", "batch_std", "none"],
        ["population", "sample"],
    )
)


def one_group(rewards: Sequence[float], **options: str | float) -> list[float]:
    return group_advantages(torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.long), **options).tolist()


def advantages_of(rows: Sequence[tuple[float, int]], baseline: str, scale: str, std: str) -> np.ndarray:
    rewards, ids = zip(*rows, strict=True)
    values = torch.tensor(rewards, dtype=torch.float64)
    return group_advantages(values, torch.tensor(ids), baseline=baseline, scale=scale, std=std).numpy()


def slow_advantages(rows: Sequence[tuple[float, int]], baseline: str, scale: str, std: str) -> np.ndarray:
    """One completion at a time, with NumPy's own statistics."""
    batch = np.array([reward for reward, _ in rows if not math.isnan(reward)])
    ddof = {"population": 0, "sample": 1}[std]
    result = np.zeros(len(rows))
    for at, (reward, group) in enumerate(rows):
        members = np.array([r for r, g in rows if g == group and not math.isnan(r)])
        if math.isnan(reward) or len(set(members.tolist())) < 2:
            continue
        others = [r for n, (r, g) in enumerate(rows) if g == group and n != at and not math.isnan(r)]
        center = {"mean": members.mean(), "leave_one_out": np.mean(others), "batch_mean": batch.mean(), "none": 0.0}
        spread = {"group_std": members.std(ddof=ddof) + 1e-6, "batch_std": batch.std(ddof=ddof) + 1e-6, "none": 1.0}
        result[at] = (reward - center[baseline]) / spread[scale]
    return result


@given(ROWS, st.sampled_from(OPTIONS))
def test_any_batch_equals_the_slow_reference(rows: list[tuple[float, int]], options: tuple[str, str, str]):
    np.testing.assert_allclose(advantages_of(rows, *options), slow_advantages(rows, *options), rtol=2e-6, atol=1e-6)


@given(ROWS, st.sampled_from(["group_std", "none"]))
def test_a_group_sums_to_zero(rows: list[tuple[float, int]], scale: str):
    got = advantages_of(rows, "mean", scale, "population")
    for group in range(4):
        assert sum(a for a, (_, g) in zip(got, rows, strict=True) if g == group) == pytest.approx(0, abs=1e-5)


@given(ROWS, st.floats(-50, 50), st.sampled_from([0.5, 3.0, 100.0]))
def test_shift_and_scale_do_not_matter(rows: list[tuple[float, int]], shift: float, factor: float):
    moved = [(reward * factor + shift, group) for reward, group in rows]
    options = ("mean", "group_std", "population")
    np.testing.assert_allclose(advantages_of(moved, *options), advantages_of(rows, *options), atol=2e-5)


def test_rewards_of_0_and_100_are_those_of_0_and_1():
    assert one_group([100.0, 0.0, 0.0]) == pytest.approx(one_group([1.0, 0.0, 0.0]), abs=1e-5)


@given(ROWS, st.sampled_from(OPTIONS), st.randoms(use_true_random=False))
def test_order_does_not_matter(rows: list[tuple[float, int]], options: tuple[str, str, str], random):
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = advantages_of([rows[at] for at in order], *options)
    np.testing.assert_allclose(shuffled, advantages_of(rows, *options)[order], rtol=1e-6, atol=1e-7)


@given(ROWS, st.sampled_from([-8.0, 0.5, 64.0]), st.sampled_from([0.25, -3.0]))
def test_without_a_deviation_advantages_grow_with_the_rewards(
    rows: list[tuple[float, int]], shift: float, factor: float
):
    moved = [(reward * factor + shift, group) for reward, group in rows]
    for baseline in ("mean", "leave_one_out"):
        expected = factor * advantages_of(rows, baseline, "none", "population")
        np.testing.assert_allclose(advantages_of(moved, baseline, "none", "population"), expected, atol=1e-5)


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=20))
def test_leaving_oneself_out_stretches_the_distance_to_the_mean(rewards: list[float]):
    size, mean = len(rewards), np.mean(rewards)
    expected = [size / (size - 1) * (reward - mean) for reward in rewards]
    got = one_group(rewards, baseline="leave_one_out", scale="none")
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert sum(got) == pytest.approx(0, abs=1e-3)


@given(st.integers(2, 64), st.data())
def test_right_and_wrong_by_how_many_are_right(size: int, data: st.DataObject):
    right = data.draw(st.integers(1, size - 1))
    wrong = size - right
    expected = [math.sqrt(wrong / right)] * right + [-math.sqrt(right / wrong)] * wrong
    assert one_group([1.0] * right + [0.0] * wrong) == pytest.approx(expected, rel=1e-5)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 40), st.sampled_from(OPTIONS))
def test_equal_rewards_of_any_size_give_exactly_zero(reward: float, size: int, options: tuple[str, str, str]):
    baseline, scale, std = options
    assert one_group([reward] * size, baseline=baseline, scale=scale, std=std) == [0.0] * size


@given(st.floats(0.125, 1, width=32), st.integers(2, 16))
def test_rewards_that_differ_in_the_last_bit_stay_small(reward: float, size: int):
    above = float(np.nextafter(np.float32(reward), np.float32(2)))
    assert max(map(abs, one_group([reward] * (size - 1) + [above]))) < 0.2


@given(ROWS)
def test_a_group_has_mean_square_one(rows: list[tuple[float, int]]):
    got = advantages_of(rows, "mean", "group_std", "population")
    for group in range(4):
        own = [a for a, (reward, g) in zip(got, rows, strict=True) if g == group and not math.isnan(reward)]
        assert sum(a * a for a in own) == pytest.approx(len(own) if any(own) else 0, rel=1e-4)
