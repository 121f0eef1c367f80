"""Advantages, KL estimates and token weights, against worked numbers and a slow float64 reference."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.algorithms import group_advantages, has_signal, kl_estimate, token_weights

NAN = math.nan
EIGHT = [1.5, 0.0, 1.5, 0.0, 1.0, 1.5, 0.5, 1.5]
TWO_GROUPS = [0, 0, 1, 1]
BATCH = {"baseline": "batch_mean", "scale": "batch_std"}


def advantages(rewards: Sequence[float], groups: Sequence[int] | None = None, **options: str | float) -> list[float]:
    rewards_N = torch.tensor(rewards, dtype=torch.float64)
    return group_advantages(rewards_N, torch.tensor(groups or [0] * len(rewards)), **options).tolist()


# Advantages


@pytest.mark.parametrize(
    ("rewards", "groups", "options", "expected"),
    [
        # Mean 0.6, squared deviations 6 * 0.16 + 4 * 0.36 = 2.4; 2.4 / 10 and 2.4 / 9.
        ([1.0] * 6 + [0.0] * 4, None, {}, [0.8165] * 6 + [-1.2247] * 4),
        ([1.0] * 6 + [0.0] * 4, None, {"std": "sample"}, [0.4 / 0.5164] * 6 + [-0.6 / 0.5164] * 4),
        # Mean 0.625, population variance (0.875^2 + 0.375^2 + 2 * 0.625^2) / 4 = 0.421875, deviation 0.649519.
        ([1.5, 1.0, 0.0, 0.0], None, {}, [1.34715, 0.57735, -0.96225, -0.96225]),
        # Sum 7.5, mean 0.9375; squares 10.25, 10.25 / 8 - 0.9375^2 = 0.40234, its root 0.63431.
        (EIGHT, None, {}, [(reward - 0.9375) / 0.63431 for reward in EIGHT]),
        (EIGHT, None, {"scale": "none"}, [reward - 0.9375 for reward in EIGHT]),
        # Deviation 0.5: +-0.5 / (0.5 + 0.5); of the batch 1: +-1 / (1 + 1).
        ([1.0, 0.0], None, {"eps": 0.5}, [0.5, -0.5]),
        ([1.0, -1.0], None, {"scale": "batch_std", "eps": 1.0}, [0.5, -0.5]),
        # The others' means of 1, 2, 6 are 4, 3.5 and 1.5.
        ([1.0, 2.0, 6.0], None, {"baseline": "leave_one_out", "scale": "none"}, [-3.0, -1.5, 4.5]),
        ([3.0, 1.0], None, {"baseline": "none", "scale": "none"}, [3.0, 1.0]),
        # Batch mean 2, squared deviations 4 + 4 + 1 + 1 = 10: deviation sqrt(2.5), of the sample sqrt(10 / 3).
        ([4.0, 0.0, 1.0, 3.0], TWO_GROUPS, BATCH, [1.26491, -1.26491, -0.63246, 0.63246]),
        ([4.0, 0.0, 1.0, 3.0], TWO_GROUPS, {**BATCH, "std": "sample"}, [1.09545, -1.09545, -0.54772, 0.54772]),
        # Less the group's mean +-2 and +-1, of the batch squares 4 + 4 + 1 + 1 = 10; equal rewards get 0, and count.
        ([4.0, 0.0, 1.0, 3.0], TWO_GROUPS, {"scale": "advantage_std"}, [1.26491, -1.26491, -0.63246, 0.63246]),
        ([4.0, 0.0, 5.0, 5.0], TWO_GROUPS, {"scale": "advantage_std"}, [1.41421, -1.41421, 0.0, 0.0]),
        (
            [9.0, 5.0, 1.0, 3.0],
            TWO_GROUPS,
            {"scale": "advantage_std", "std": "sample"},
            [1.09545, -1.09545, -0.54772, 0.54772],
        ),
        # Rewards 1, 0 and 4, 3: the batch has mean 2, the groups 0.5 and 3.5.
        ([1.0, 0.0, 4.0, 3.0], TWO_GROUPS, {"baseline": "batch_mean", "scale": "none"}, [-1, -2, 2, 1]),
        # [1, 0, 0]: mean 1/3, deviation 0.4714; [10, 30]: mean 20, deviation 10; in any order.
        ([1.0, 10.0, 0.0, 30.0, 0.0], [-7, 99, -7, 99, -7], {}, [1.41421, -1.0, -0.70711, 1.0, -0.70711]),
    ],
)
def test_advantages_by_hand(
    rewards: list[float], groups: list[int] | None, options: dict[str, str | float], expected: list[float]
):
    assert advantages(rewards, groups, **options) == pytest.approx(expected, abs=1e-4)


REWARD = st.sampled_from([NAN, 0.0, 0.25, 0.5, 1.0, 1.5, -2.0])
ROWS = st.lists(st.tuples(REWARD, st.integers(0, 3)), min_size=1, max_size=24)
BASELINES, SCALES = ["mean", "leave_one_out", "batch_mean", "none"], ["group_std", "batch_std", "advantage_std", "none"]
OPTIONS = st.sampled_from(list(itertools.product(BASELINES, SCALES, ["population", "sample"])))


def slow_advantages(rows: Sequence[tuple[float, int]], baseline: str, scale: str, std: str) -> np.ndarray:
    """One completion at a time, with NumPy's own statistics."""
    batch = np.array([reward for reward, _ in rows if not math.isnan(reward)])
    ddof = {"population": 0, "sample": 1}[std]
    result, spread = np.zeros(len(rows)), np.ones(len(rows))
    for at, (reward, group) in enumerate(rows):
        members = np.array([r for r, g in rows if g == group and not math.isnan(r)])
        if math.isnan(reward) or len(set(members.tolist())) < 2:
            continue
        others = [r for n, (r, g) in enumerate(rows) if g == group and n != at and not math.isnan(r)]
        center = {"mean": members.mean(), "leave_one_out": np.mean(others), "batch_mean": batch.mean(), "none": 0.0}
        result[at] = reward - center[baseline]
        spread[at] = {"group_std": members.std(ddof=ddof) + 1e-6, "batch_std": batch.std(ddof=ddof) + 1e-6}.get(
            scale, 1
        )
    if scale == "advantage_std" and result.any():
        spread[:] = result[[not math.isnan(reward) for reward, _ in rows]].std(ddof=ddof) + 1e-6
    return result / spread


@given(ROWS, OPTIONS)
def test_any_batch_equals_the_slow_reference(rows: list[tuple[float, int]], options: tuple[str, str, str]):
    rewards, groups = zip(*rows, strict=True)
    got = advantages(rewards, groups, **dict(zip(("baseline", "scale", "std"), options, strict=True)))
    np.testing.assert_allclose(got, slow_advantages(rows, *options), rtol=2e-6, atol=1e-6)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 40), OPTIONS)
def test_equal_rewards_of_any_size_give_exactly_zero(reward: float, size: int, options: tuple[str, str, str]):
    baseline, scale, std = options
    assert advantages([reward] * size, baseline=baseline, scale=scale, std=std) == [0.0] * size


@given(st.floats(0.125, 1, width=32), st.integers(2, 16))
def test_rewards_that_differ_in_the_last_bit_stay_small(reward: float, size: int):
    above = float(np.nextafter(np.float32(reward), np.float32(2)))
    assert max(map(abs, advantages([reward] * (size - 1) + [above]))) < 0.2


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group_std", "batch_std", "advantage_std"])
@pytest.mark.parametrize(
    "rewards", [[0.1 + 0.2, 0.3, 0.3], [0.7, 0.1 * 7, 0.7, 0.1 * 7], [1e29, 1e29 * (1 + 2**-52)], [-0.3, -0.1 - 0.2]]
)
def test_rounding_is_no_signal_without_eps(rewards: list[float], scale: str, baseline: str):
    """The rewards differ in their last bits: exact arithmetic divided by them would give about 1."""
    assert max(map(abs, advantages(rewards, eps=0.0, scale=scale, baseline=baseline))) < 1e-14


@pytest.mark.parametrize(
    "rewards", [[1e-12, 0.0], [1e-7, 0.0], [1.0, 1.0 + 1e-9], [5e-17, 0.0], [1e15, 1e15 + 8], [2.0**24, 2.0**24 + 1]]
)
def test_small_differences_beyond_rounding_are_a_whole_signal_without_eps(rewards: list[float]):
    """Two different rewards: one deviation below and one above their mean."""
    assert sorted(advantages(rewards, eps=0.0)) == pytest.approx([-1.0, 1.0], rel=1e-6)


@pytest.mark.parametrize("rewards", [[5.0], [NAN, 2.0, NAN], [NAN, NAN]])
@pytest.mark.parametrize("options", [{}, {"std": "sample"}, {"baseline": "none", "scale": "none"}], ids=str)
def test_fewer_than_two_valid_rewards_are_no_group(rewards: list[float], options: dict[str, str]):
    assert advantages(rewards, **options) == [0.0] * len(rewards)


def test_an_invalid_reward_is_left_out_of_every_statistic():
    with_nan = advantages([1.0, NAN, 0.0, 0.0, NAN, 1.0, 1.0])
    assert [with_nan[at] for at in (0, 2, 3, 5, 6)] == advantages([1.0, 0.0, 0.0, 1.0, 1.0])
    assert [with_nan[1], with_nan[4]] == [0.0, 0.0]


@pytest.mark.parametrize(("size", "advantage"), [(2, 1.0), (8, 2.645751), (64, 7.937254)])
@pytest.mark.parametrize("reward", [1.0, 1000.0])
def test_an_outlier_weighs_as_much_as_all_others_of_its_group(size: int, advantage: float, reward: float):
    """The square root of G - 1, however far away it is."""
    rewards = torch.tensor([reward] + [0.0] * (size - 1))
    found = group_advantages(rewards, torch.zeros(size, dtype=torch.long))
    assert found[0] == pytest.approx(advantage, rel=1e-5)
    assert found[1:].sum() == pytest.approx(-advantage, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_the_result_is_float32(dtype: torch.dtype):
    got = group_advantages(torch.tensor([1, 0, 0, 1]).to(dtype), torch.tensor(TWO_GROUPS))
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx([1, -1, -1, 1], abs=1e-5)


def test_has_signal_by_group():
    rewards = torch.tensor([1.0, 1.0, NAN, 0.0, 0.5, NAN, 3.0])
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    assert has_signal(rewards, ids).tolist() == [False] * 3 + [True] * 2 + [False] * 2


@pytest.mark.parametrize("options", [{"baseline": "median"}, {"scale": "std"}, {"std": "biased"}])
def test_unknown_options_are_refused(options: dict[str, str]):
    with pytest.raises(ValueError, match=next(iter(options.values()))):
        advantages([1.0, 0.0], **options)


@pytest.mark.parametrize("shapes", [((3,), (2,)), ((3, 1), (3, 1))])
def test_shapes_that_differ_are_refused(shapes: tuple[tuple[int, ...], ...]):
    with pytest.raises(ValueError, match="shape"):
        group_advantages(*map(torch.zeros, shapes))


# KL


def test_kl_by_hand():
    # The policy gives the token 1/2, the reference 1/4: r = 1/2, log r = -0.693147.
    policy, reference = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    for kind, expected in (("k1", 0.6931472), ("k2", 0.2402265), ("k3", 0.1931472)):
        assert float(kl_estimate(policy, reference, kind=kind)) == pytest.approx(expected)
    assert torch.equal(kl_estimate(policy, reference), kl_estimate(policy, reference, kind="k3"))
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(policy, reference, kind="k4")


def test_k3_keeps_its_digits_near_the_reference():
    # r - 1 - log r = x^2 / 2 + ... for log r = x; in float32, exp(1e-4) - 1 alone has lost it.
    got = kl_estimate(torch.tensor([0.0]), torch.tensor([1e-3]), kind="k3")
    assert float(got) == pytest.approx(0.5e-6, rel=1e-2)
    assert float(kl_estimate(torch.tensor([-1.25]), torch.tensor([-1.25]))) == 0.0


# Token weights

MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
TWELFTHS = torch.tensor([[1], [6], [1], [6]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[1 / 16] * 4, [1 / 4, 0, 0, 0], [1 / 8, 1 / 8, 0, 0], [0] * 4]),
        ({"aggregate": "token_mean"}, (MASK / 7).tolist()),
        ({"aggregate": "constant", "constant_length": 10}, (MASK / 40).tolist()),
        # Groups of 4 + 2 and of 1 + 0 tokens: each token a twelfth, and a half.
        ({"aggregate": "prompt_mean", "group_ids_N": torch.tensor([7, 3, 7, 3])}, (MASK * TWELFTHS / 12).tolist()),
    ],
    ids=str,
)
def test_weights_by_hand(options: dict[str, Any], expected: list[list[float]]):
    """In float32 whatever the mask; an empty completion is one of those that divide."""
    torch.testing.assert_close(token_weights(MASK.double(), **options), torch.tensor(expected))
    assert token_weights(torch.zeros(2, 3), aggregate="token_mean").sum() == 0


@pytest.mark.parametrize("length", [None, 0, -3])
def test_constant_needs_a_length(length: int | None):
    with pytest.raises(ValueError, match="constant_length"):
        token_weights(MASK, aggregate="constant", constant_length=length)


def test_a_mean_by_prompt_needs_the_groups():
    with pytest.raises(ValueError, match="needs group_ids_N"):
        token_weights(MASK, aggregate="prompt_mean")


def test_an_unknown_aggregate_is_refused():
    with pytest.raises(ValueError, match="median"):
        token_weights(MASK, aggregate="median")
