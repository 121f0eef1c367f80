"""Advantages of tokens, group filters, corrections, penalties and the critic's loss, against hand-worked numbers."""

import math

import pytest
import torch
from torch import Tensor

from grouprl.algorithms import (
    gae,
    high_entropy_mask,
    kept_groups,
    mismatch_weights,
    overlong_penalty,
    steered_entropy_coef,
    steered_kl_coef,
    token_advantages,
    value_loss,
)
from grouprl.algorithms.entropy import Entropy

NAN = math.nan


def close(got: Tensor, expected: list[list[float]] | list[float], atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), atol=atol, rtol=0)


# Rewards to come

# Two completions of 3 and 2 tokens: a KL penalty at every token, the reward at the last one.
REWARDS = torch.tensor([[-0.1, -0.2, 1.0], [-0.3, 0.5, 99.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()


def test_without_a_critic_a_token_is_credited_with_what_comes_after_it() -> None:
    advantages, returns = token_advantages(REWARDS, MASK, center=False, normalize=False)
    close(advantages, [[0.7, 0.8, 1.0], [0.2, 0.5, 0.0]])
    assert torch.equal(advantages, returns)
    discounted, _ = token_advantages(REWARDS, MASK, gamma=0.5, center=False, normalize=False)
    close(discounted, [[0.05, 0.3, 1.0], [-0.05, 0.5, 0.0]])


def test_the_batch_of_tokens_is_centered_and_normalized() -> None:
    # 0.7, 0.8, 1.0, 0.2, 0.5: mean 0.64, squared deviations 0.0036 + 0.0256 + 0.1296 + 0.1936 + 0.0196 = 0.372
    centered, _ = token_advantages(REWARDS, MASK, normalize=False)
    close(centered, [[0.06, 0.16, 0.36], [-0.44, -0.14, 0.0]])
    population, _ = token_advantages(REWARDS, MASK, eps=0.0)
    close(population, (torch.tensor([[0.06, 0.16, 0.36], [-0.44, -0.14, 0.0]]) / math.sqrt(0.372 / 5)).tolist())
    sample, _ = token_advantages(REWARDS, MASK, std="sample", eps=0.1)
    close(sample, (torch.tensor([[0.06, 0.16, 0.36], [-0.44, -0.14, 0.0]]) / (math.sqrt(0.372 / 4) + 0.1)).tolist())


@pytest.mark.parametrize("reward", [0.0, 0.3, 0.6, 0.7, 0.9, 1.3])
@pytest.mark.parametrize("options", [{}, {"eps": 0.0}, {"normalize": False}], ids=str)
def test_equal_returns_leave_exactly_nothing(reward: float, options: dict[str, float]) -> None:
    # the mean of eleven 0.3 in float64 is not 0.3
    rewards = torch.zeros(11, 4, dtype=torch.float64)
    rewards[:, -1] = reward
    advantages, returns = token_advantages(rewards, torch.ones(11, 4), **options)
    assert torch.equal(advantages, torch.zeros(11, 4))
    assert returns.min() == returns.max() == pytest.approx(reward)


@pytest.mark.parametrize("size", [1.0, -1.0, 1000.0, -1000.0])
def test_a_deviation_that_rounding_explains_is_not_normalized(size: float) -> None:
    """Values near 1 in float32 are 6e-8 apart, near 1000 6e-5: a critic that is right up to that gives no advantage."""
    rewards, right = torch.tensor([[0.0, size]] * 2, dtype=torch.float64), torch.full((2, 2), size)
    for part, deviation in ((2.0**-24, 0.0), (2.0**-11, 1.0)):
        values = right + size * part * torch.tensor([[0.0, 1.0], [-1.0, 2.0]])
        advantages, _ = token_advantages(rewards, torch.ones(2, 2), values_NT=values, eps=0.0)
        assert float(advantages.std(correction=0)) == pytest.approx(deviation, abs=1e-5)


@pytest.mark.parametrize("reward", [1e-6, 1.0, 1e6])
def test_a_small_signal_is_normalized_whatever_the_size_of_the_rewards(reward: float) -> None:
    """Rewards of float64 that differ in the ninth digit are a signal: nothing rounds them before."""
    rewards = torch.tensor([[reward], [reward * (1 + 1e-9)]], dtype=torch.float64)
    advantages, _ = token_advantages(rewards, torch.ones(2, 1), eps=0.0)
    assert advantages[:, 0].tolist() == pytest.approx([-1, 1], rel=1e-3)


def test_with_a_critic_they_are_gae_and_returns_are_not_normalized() -> None:
    values = torch.tensor([[0.5, 0.1, 0.4], [0.2, 0.3, 7.0]])
    plain, returns = gae(REWARDS, values, MASK, gamma=0.9, lam=0.8)
    ours, ours_returns = token_advantages(
        REWARDS, MASK, values_NT=values, gamma=0.9, lam=0.8, center=False, normalize=False
    )
    torch.testing.assert_close(ours, plain)
    white, white_returns = token_advantages(REWARDS, MASK, values_NT=values, gamma=0.9, lam=0.8)
    torch.testing.assert_close(ours_returns, returns)
    assert torch.equal(white_returns, ours_returns)
    assert float(white[MASK].mean()) == pytest.approx(0, abs=1e-6)
    assert float(white[MASK].std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_a_completion_that_does_not_count_changes_nothing_for_the_others() -> None:
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]]).bool()
    got, _ = token_advantages(torch.tensor([[-0.1, -0.2, 1.0], [NAN, NAN, NAN]]), mask)
    alone, _ = token_advantages(REWARDS[:1], mask[:1])
    assert torch.equal(got, torch.cat([alone, torch.zeros(1, 3)]))


# Filters

# Groups: mixed with mean 0.5, all right, all wrong, one valid, mean 0.25 of the valid.
FILTERED = [[1, 0], [1, 1], [0, 0], [1, NAN], [0.5, 0.0, NAN]]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {0, 1, 2, 3, 4}), ({"drop_equal": True}, {0, 4}), ({"drop_below": 0.5}, {0, 1, 3}),
        ({"drop_above": 0.5}, {0, 2, 4}), ({"drop_below": 0.2, "drop_above": 0.3}, {4}),
        ({"drop_equal": True, "drop_below": 0.3}, {0}),
    ],
    ids=str,
)  # fmt: skip
def test_groups_are_kept_or_dropped_whole(options: dict[str, object], kept: set[int]) -> None:
    assert kept_groups(FILTERED, **options) == [group in kept for group in range(5)]


def test_a_group_without_any_valid_reward_has_no_mean() -> None:
    assert kept_groups([[NAN, NAN], [1.0]]) == [True, True]
    assert kept_groups([[NAN, NAN], [1.0]], drop_below=0.0) == [False, True]


# Sampler and learner

LEARNER = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, 5.0]])
SAMPLER = LEARNER - torch.tensor([[math.log(3.0), math.log(0.25), math.log(1.5)], [math.log(0.6), 0.0, 0.0]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "truncate"}, [[2, 0.25, 1.5], [0.6, 1, 0]]),
        ({"kind": "truncate", "cap": 4.0}, [[3, 0.25, 1.5], [0.6, 1, 0]]),
        ({"kind": "mask"}, [[0, 0, 1.5], [0.6, 1, 0]]),  # IcePop's bounds: a half and two
        ({"kind": "mask", "floor": 0.0}, [[0, 0.25, 1.5], [0.6, 1, 0]]),
        ({"kind": "mask", "floor": 1.0, "cap": 1.0}, [[0, 0, 0], [0, 1, 0]]),
        # of the whole completions: 3 * 0.25 * 1.5 = 1.125 and 0.6
        ({"kind": "truncate", "level": "sequence", "cap": 1.0}, [[1, 1, 1], [0.6, 0.6, 0]]),
        ({"kind": "mask", "level": "sequence", "cap": 1.12}, [[0, 0, 0], [0.6, 0.6, 0]]),
    ],
    ids=str,
)
def test_tokens_of_a_sampler_that_differs_are_weighed(options: dict[str, object], expected: list[list[float]]) -> None:
    close(mismatch_weights(LEARNER, SAMPLER, MASK, **options), expected)


# Penalties, entropies, the KL coefficient


def test_the_soft_overlong_penalty_of_dapo() -> None:
    # section 4.1 of the paper: 16,384 tokens, and 4,096 more with a growing penalty
    lengths = torch.tensor([1, 16_384, 18_432, 20_480])
    close(overlong_penalty(lengths, max_tokens=20_480, buffer=0.2), [0, 0, -0.5, -1])
    close(overlong_penalty(lengths, max_tokens=20_480, buffer=0.0), [0, 0, 0, 0])
    close(overlong_penalty(torch.tensor([16, 17, 18, 20]), max_tokens=20, buffer=0.2), [0, -0.25, -0.5, -1])


def test_the_tokens_of_highest_entropy_are_chosen_over_the_batch() -> None:
    entropies = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 9.0]])
    mask, threshold = high_entropy_mask(entropies, MASK, share=0.4)  # 2 of 5: 0.4 * 4 is 1.6
    assert mask.tolist() == [[False, True, False], [True, False, False]]
    assert threshold == pytest.approx(0.7)
    assert torch.equal(high_entropy_mask(entropies, MASK, share=1.0)[0], MASK)
    assert int(high_entropy_mask(entropies, MASK, share=0.01)[0].sum()) == 1
    tied = torch.zeros(2, 3)
    assert int(high_entropy_mask(tied, MASK, share=0.4)[0].sum()) == 2  # and not all that are equal to the second


@pytest.mark.parametrize(
    ("tokens", "share", "count"),
    # TRL takes the entropies from torch.quantile(entropies, 1 - share) on: of 1, 2, 3, 4, 5 the median is 3, so 3 of 5.
    [(5, 0.5, 3), (4, 0.5, 2), (3, 0.5, 2), (7, 0.2, 2), (10, 0.2, 2), (11, 0.2, 3), (9, 0.9, 8), (1, 0.1, 1)],
)
def test_the_count_of_high_entropy_tokens_is_that_of_the_quantile(tokens: int, share: float, count: int) -> None:
    entropies = torch.arange(1.0, tokens + 1)[None]
    mask, threshold = high_entropy_mask(entropies, entropies > 0, share=share)
    assert int(mask.sum()) == count
    assert threshold == tokens - count + 1
    assert count == int((entropies >= torch.quantile(entropies, 1 - share) - 1e-5).sum())


@pytest.mark.parametrize(("kl", "factor"), [(2.2, 1.01), (2.0, 1.0), (1.9, 0.995), (9.0, 1.02), (0.0, 0.98)])
def test_the_kl_coefficient_is_steered(kl: float, factor: float) -> None:
    assert steered_kl_coef(0.5, kl, target=2.0) == pytest.approx(0.5 * factor)


# The critic's loss

OLD = torch.tensor([[1.0, 2.0, 0.0, 1.0]])
RETURNS = torch.tensor([[2.0, 2.0, 4.0, 0.0]])
WEIGHTS = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
VALUES = torch.tensor([[1.5, 1.9, 1.0, 0.0]])


def test_the_value_loss_by_hand() -> None:
    values = VALUES.clone().requires_grad_()
    # squared errors 0.25, 0.01, 9, 0; of the values clipped to old +- 0.2: (1.2 - 2)^2, 0.01, (0.2 - 4)^2, 0.8^2
    loss, stats = value_loss(values, OLD, RETURNS, WEIGHTS, clip=0.2)
    assert float(loss.detach()) == pytest.approx((0.5 * 0.64 + 0.25 * 0.01 + 0.125 * (14.44 + 0.64)) / 2)
    assert float(stats["value_clip_fraction"]) == pytest.approx(3 / 4)
    loss.backward()
    # where the clipped value is the worse one, it does not move any more
    close(values.grad, [[0.0, 0.25 * -0.1, 0.0, 0.0]])
    free, stats = value_loss(values, OLD, RETURNS, WEIGHTS, clip=None)
    assert float(free.detach()) == pytest.approx((0.5 * 0.25 + 0.25 * 0.01 + 0.125 * 9) / 2)
    assert float(stats["value_clip_fraction"]) == 0


def test_a_value_is_free_to_come_back_from_too_far() -> None:
    # 0.5 above its old value and above the return: the plain error is the worse one and has a gradient
    values = torch.tensor([[1.5]], requires_grad=True)
    value_loss(values, torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), clip=0.2)[0].backward()
    close(values.grad, [[0.5]])


@pytest.mark.parametrize("junk", [NAN, math.inf, 1e30])
def test_padding_of_the_value_loss_may_hold_anything(junk: float) -> None:
    def padded(row: Tensor) -> Tensor:
        return torch.cat([row, torch.full((1, 1), junk)], dim=1)

    values = VALUES.clone().requires_grad_()
    weights = torch.cat([WEIGHTS, torch.zeros(1, 1)], dim=1)
    loss, stats = value_loss(padded(values), padded(OLD), padded(RETURNS), weights)
    expected, expected_stats = value_loss(values, OLD, RETURNS, WEIGHTS)
    assert (float(loss.detach()), stats) == (float(expected.detach()), expected_stats)
    loss.backward()
    assert values.grad.isfinite().all()


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one shape \[N, T\]"):
        value_loss(OLD, OLD, RETURNS[:, :2], WEIGHTS)


@pytest.mark.parametrize(
    ("coef", "entropy", "expected"),
    [
        (0.0, 0.1, (0.005, 0.005)),  # too low: the bonus begins
        (0.02, 0.2, (0.025, 0.025)),  # at the target counts as low
        (0.02, 0.3, (0.015, 0.0)),  # too high: the coefficient falls, and the bonus pauses
        (0.002, 0.3, (0.0, 0.0)),
        (0.998, 0.1, (1.0, 1.0)),
    ],
)
def test_the_entropy_coefficient_follows_its_target(coef: float, entropy: float, expected: tuple[float, float]):
    assert steered_entropy_coef(coef, entropy, target=0.2) == pytest.approx(expected)


def test_a_paused_entropy_coefficient_moves_on_from_where_it_was() -> None:
    steered = Entropy(entropy_target=1.0, entropy_step=0.01)
    assert steered.next_coefs((0.5, 0.0), 0.9) == pytest.approx((0.51, 0.51))
    assert steered.next_coefs((0.5, 0.5), 1.1) == pytest.approx((0.49, 0.0))
    assert steered.next_coefs((0.5, 0.0), NAN) == (0.5, 0.0)
    assert Entropy(entropy_coef=0.2).next_coefs((0.5, 0.1), 0.9) == (0.5, 0.1)
