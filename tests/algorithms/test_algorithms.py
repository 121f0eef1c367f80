"""Advantages, KL estimates and token weights, against worked numbers, enumeration and a slow float64 reference."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.algorithms import group_advantages, has_signal, kl_estimate, token_weights

NAN = math.nan


def one_group(rewards: Sequence[float], **options: str | float) -> list[float]:
    return group_advantages(torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.long), **options).tolist()


# Advantages: worked numbers


def test_six_right_of_ten():
    got = one_group([1.0] * 6 + [0.0] * 4)
    assert got == pytest.approx([0.8165] * 6 + [-1.2247] * 4, abs=1e-4)


def test_the_sample_deviation_divides_by_one_less():
    # Mean 0.6, squared deviations 6 * 0.16 + 4 * 0.36 = 2.4; 2.4 / 9 = 0.2667, its root 0.5164.
    got = one_group([1.0] * 6 + [0.0] * 4, std="sample")
    assert got == pytest.approx([0.4 / 0.5164] * 6 + [-0.6 / 0.5164] * 4, abs=1e-4)


def test_correct_and_boxed_rewards():
    # Mean 0.625, population variance (0.875^2 + 0.375^2 + 2 * 0.625^2) / 4 = 0.421875, deviation 0.649519.
    assert one_group([1.5, 1.0, 0.0, 0.0]) == pytest.approx([1.3471506, 0.5773503, -0.9622504, -0.9622504], abs=1e-5)


def test_a_group_of_eight():
    rewards = [1.5, 0.0, 1.5, 0.0, 1.0, 1.5, 0.5, 1.5]
    expected = [(reward - 0.9375) / 0.6343 for reward in rewards]
    assert one_group(rewards) == pytest.approx(expected, abs=2e-4)


def test_the_mean_and_the_deviation_behind_the_advantages():
    # Sum 7.5, mean 0.9375; squares 10.25, 10.25 / 8 - 0.9375^2 = 0.40234, its root 0.63431; 3.21875 / 7: 0.67810.
    rewards = [1.5, 0.0, 1.5, 0.0, 1.0, 1.5, 0.5, 1.5]
    centered = one_group(rewards, scale="none")
    assert [reward - above for reward, above in zip(rewards, centered, strict=True)] == [0.9375] * 8
    assert one_group([1.5, 1.0, 0.0, 0.0], scale="none") == [0.875, 0.375, -0.625, -0.625]
    for std, deviation in (("population", 0.63431), ("sample", 0.67810)):
        scaled = one_group(rewards, std=std, eps=0.0)
        assert [above / score for above, score in zip(centered, scaled, strict=True)] == pytest.approx(
            [deviation] * 8, abs=1e-5
        )


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
@pytest.mark.parametrize(
    "rewards",
    [
        [0.1 + 0.2, 0.3],
        [0.1 + 0.2, 0.3, 0.3],
        [0.7, 0.1 * 7, 0.7, 0.1 * 7],
        [1e29, 1e29 * (1 + 2**-52)],
        [-0.3, -0.1 - 0.2],
    ],
)
def test_rounding_is_no_signal_without_eps(rewards: list[float], scale: str, baseline: str):
    """The rewards differ in their last bits: exact arithmetic divided by them would give about 1."""
    got = group_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.zeros(len(rewards), dtype=torch.long),
        eps=0.0,
        scale=scale,
        baseline=baseline,
    )
    assert got.abs().max() < 1e-14


@pytest.mark.parametrize("rewards", [[1e-12, 0.0], [1.0, 1.0 + 1e-9], [5e-17, 0.0], [1e15, 1e15 + 8]])
def test_small_differences_beyond_rounding_are_a_whole_signal_without_eps(rewards: list[float]):
    """Two different rewards: one deviation below and one above their mean."""
    got = group_advantages(torch.tensor(rewards, dtype=torch.float64), torch.zeros(2, dtype=torch.long), eps=0.0)
    assert sorted(got.tolist()) == pytest.approx([-1.0, 1.0], rel=1e-6)


def test_eps_is_added_to_the_deviation():
    # Deviation 0.5: +-0.5 / (0.5 + 0.5).
    assert one_group([1.0, 0.0], eps=0.5) == pytest.approx([0.5, -0.5], abs=1e-7)


def test_leave_one_out_compares_with_the_others():
    # The others' means of 1, 2, 6 are 4, 3.5 and 1.5; G / (G - 1) (r - mean) = 1.5 (r - 3) says the same.
    got = one_group([1.0, 2.0, 6.0], baseline="leave_one_out", scale="none")
    assert got == pytest.approx([-3.0, -1.5, 4.5], abs=1e-6)
    assert got == pytest.approx([1.5 * (reward - 3) for reward in (1, 2, 6)], abs=1e-6)


def test_without_scale_and_baseline():
    assert one_group([1.0, 0.0, 0.0, 0.0], scale="none") == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert one_group([3.0, 1.0], baseline="none", scale="none") == [3.0, 1.0]


def test_statistics_of_the_batch():
    rewards, ids = torch.tensor([4.0, 0.0, 1.0, 3.0]), torch.tensor([0, 0, 1, 1])
    # Batch mean 2, squared deviations 4 + 4 + 1 + 1 = 10; population deviation sqrt(2.5) = 1.5811.
    got = group_advantages(rewards, ids, baseline="batch_mean", scale="batch_std")
    assert got.tolist() == pytest.approx([1.26491, -1.26491, -0.632456, 0.632456], abs=1e-5)
    sample = group_advantages(rewards, ids, baseline="batch_mean", scale="batch_std", std="sample")
    assert sample.tolist() == pytest.approx([1.095445, -1.095445, -0.5477226, 0.5477226], abs=1e-5)
    own = group_advantages(rewards, ids, scale="batch_std")  # both groups have mean 2
    assert own.tolist() == pytest.approx(got.tolist())


def test_groups_do_not_mix_and_need_no_order():
    rewards = torch.tensor([1.0, 10.0, 0.0, 30.0, 0.0])
    got = group_advantages(rewards, torch.tensor([-7, 99, -7, 99, -7])).tolist()
    # [1, 0, 0]: mean 1/3, deviation 0.4714; [10, 30]: mean 20, deviation 10.
    assert got == pytest.approx([1.41421, -1.0, -0.707107, 1.0, -0.707107], abs=1e-5)


# Advantages: no signal, invalid rewards, rounding


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "batch_mean", "none"])
def test_equal_rewards_give_exactly_zero(baseline: str, scale: str):
    rewards = torch.tensor([0.7] * 8 + [0.1, 0.9])
    got = group_advantages(rewards, torch.tensor([0] * 8 + [1] * 2), baseline=baseline, scale=scale)
    assert got[:8].tolist() == [0.0] * 8
    assert got[8:].abs().min() > 0


@pytest.mark.parametrize("std", ["population", "sample"])
@pytest.mark.parametrize("rewards", [[5.0], [NAN, 2.0, NAN], [NAN, NAN]])
def test_fewer_than_two_valid_rewards_are_no_group(rewards: list[float], std: str):
    assert one_group(rewards, std=std) == [0.0] * len(rewards)
    assert one_group(rewards, std=std, baseline="none", scale="none") == [0.0] * len(rewards)


def test_an_invalid_reward_is_left_out_of_every_statistic():
    with_nan = one_group([1.0, NAN, 0.0, 0.0, NAN, 1.0, 1.0])
    without = one_group([1.0, 0.0, 0.0, 1.0, 1.0])
    assert [with_nan[at] for at in (0, 2, 3, 5, 6)] == without
    assert [with_nan[1], with_nan[4]] == [0.0, 0.0]


def test_rounding_is_not_blown_up():
    # Seven 0.95 and one 0: mean 0.83125, variance 7/64 * 0.9025, deviation 0.31418.
    got = one_group([0.95] * 7 + [0.0])
    assert got == pytest.approx([0.377964] * 7 + [-2.645751], abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_the_result_is_float32(dtype: torch.dtype):
    got = group_advantages(torch.tensor([1, 0, 0, 1]).to(dtype), torch.tensor([0, 0, 1, 1]))
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx([1, -1, -1, 1], abs=1e-5)


def test_has_signal_by_group():
    rewards = torch.tensor([1.0, 1.0, NAN, 0.0, 0.5, NAN, 3.0])
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    assert has_signal(rewards, ids).tolist() == [False] * 3 + [True] * 2 + [False] * 2


@pytest.mark.parametrize("options", [{"baseline": "median"}, {"scale": "std"}, {"std": "biased"}])
def test_unknown_options_are_refused(options: dict[str, str]):
    with pytest.raises(ValueError, match=next(iter(options.values()))):
        one_group([1.0, 0.0], **options)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match="shape"):
        group_advantages(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match="shape"):
        group_advantages(torch.zeros(3, 1), torch.zeros(3, 1))


# KL


@given(st.floats(-30, 0, width=32), st.floats(-30, 0, width=32))
def test_k1_changes_sign_with_the_direction_k2_does_not_and_k3_has_none(one: float, other: float):
    policy, reference = torch.tensor(one), torch.tensor(other)
    there, back = (
        {kind: kl_estimate(*pair, kind=kind) for kind in ("k1", "k2", "k3")}
        for pair in ((policy, reference), (reference, policy))
    )
    assert there["k1"] == -back["k1"]
    assert there["k2"] == back["k2"]
    assert there["k3"] >= 0


def test_kl_by_hand():
    # The policy gives the token 1/2, the reference 1/4: r = 1/2, log r = -0.693147.
    policy, reference = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert float(kl_estimate(policy, reference, kind="k1")) == pytest.approx(0.6931472)
    assert float(kl_estimate(policy, reference, kind="k2")) == pytest.approx(0.2402265)
    assert float(kl_estimate(policy, reference, kind="k3")) == pytest.approx(0.1931472)
    assert torch.equal(kl_estimate(policy, reference), kl_estimate(policy, reference, kind="k3"))


def test_k1_and_k3_are_unbiased_and_k3_is_never_negative():
    policy = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    reference = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    true_kl = sum(p * math.log(p / q) for p, q in zip(policy.tolist(), reference.tolist(), strict=True))
    for kind in ("k1", "k3"):
        expectation = (policy * kl_estimate(policy.log(), reference.log(), kind=kind)).sum()
        assert float(expectation) == pytest.approx(true_kl, rel=1e-12)
    assert kl_estimate(policy.log(), reference.log(), kind="k3").min() > 0
    assert kl_estimate(policy.log(), reference.log(), kind="k1").min() < 0


def test_k3_keeps_its_digits_near_the_reference():
    # r - 1 - log r = x^2 / 2 + ... for log r = x; in float32, exp(1e-4) - 1 alone has lost it.
    got = kl_estimate(torch.tensor([0.0]), torch.tensor([1e-3]), kind="k3")
    assert float(got) == pytest.approx(0.5e-6, rel=1e-2)
    assert float(kl_estimate(torch.tensor([-1.25]), torch.tensor([-1.25]))) == 0.0


def test_an_unknown_kl_is_refused():
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(torch.zeros(1), torch.zeros(1), kind="k4")


# Token weights

MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]]).bool()


def test_sequence_mean_by_hand():
    expected = [[1 / 12] * 4, [1 / 3, 0, 0, 0], [1 / 6, 1 / 6, 0, 0]]
    torch.testing.assert_close(token_weights(MASK), torch.tensor(expected))


def test_token_mean_by_hand():
    torch.testing.assert_close(token_weights(MASK, aggregate="token_mean"), MASK.float() / 7)


def test_constant_by_hand():
    got = token_weights(MASK, aggregate="constant", constant_length=10)
    torch.testing.assert_close(got, MASK.float() / 30)


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=9))
def test_what_the_weights_add_up_to(rows: list[list[bool]]):
    mask = torch.tensor(rows)
    lengths = mask.sum(1)
    each = token_weights(mask).double().sum(1)
    torch.testing.assert_close(each, (lengths > 0).double() / len(rows), atol=1e-6, rtol=0)
    assert float(token_weights(mask, aggregate="token_mean").sum()) == pytest.approx(float(lengths.sum() > 0), abs=1e-5)
    constant = token_weights(mask, aggregate="constant", constant_length=6)
    assert float(constant.sum()) == pytest.approx(float(mask.double().mean()), abs=1e-6)


def test_weights_are_float32_and_an_empty_completion_has_none():
    got = token_weights(torch.tensor([[1, 1], [0, 0]]))
    assert got.dtype == torch.float32
    assert got.tolist() == [[0.25, 0.25], [0.0, 0.0]]
    assert token_weights(torch.zeros(2, 3), aggregate="token_mean").sum() == 0


@pytest.mark.parametrize("length", [None, 0, -3])
def test_constant_needs_a_length(length: int | None):
    with pytest.raises(ValueError, match="constant_length"):
        token_weights(MASK, aggregate="constant", constant_length=length)


def test_an_unknown_aggregate_is_refused():
    with pytest.raises(ValueError, match="median"):
        token_weights(MASK, aggregate="median")
