"""MaxRL by hand: a group weighs as 1 over its pass rate."""

from math import comb

import pytest
import torch

from grouprl import UserError
from grouprl.algorithms.named import NAMED

ADVANTAGE = NAMED["maxrl"].advantage


def advantages(rewards: list[float], groups: list[int]) -> list[float]:
    rewards_N, groups_N = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)
    return ADVANTAGE.compare(rewards_N, {}, {}, groups_N).tolist()


def test_one_right_of_four_and_three_of_four():
    found = advantages([1, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    assert found == pytest.approx([3, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1])


def test_a_group_without_signal_and_an_invalid_reward_get_exactly_0():
    assert advantages([0, 0, 1, 1, 1, torch.nan, 0], [0, 0, 1, 1, 2, 2, 2]) == [0, 0, 0, 0, 1, 0, -1]


def test_the_expected_update_is_the_gradient_of_the_log_pass_rate_to_order_g_minus_1():
    """log p = -sum_k (1 - p)^k / k; the first G - 1 terms have the derivative (1 - (1 - p)^(G - 1)) / p."""
    size, p = 4, 0.3
    total = 0.0
    for right in range(1, size):
        rewards = [1.0] * right + [0.0] * (size - right)
        weight = comb(size, right) * p**right * (1 - p) ** (size - right)
        scores = [1 / p if reward else -1 / (1 - p) for reward in rewards]  # d log prob / dp
        total += weight * sum(a * s for a, s in zip(advantages(rewards, [0] * size), scores, strict=True)) / size
    assert total == pytest.approx((1 - (1 - p) ** (size - 1)) / p)


def test_a_negative_reward_has_no_likelihood():
    with pytest.raises(UserError, match="rewards of 0 or more, got -1"):
        advantages([1, -1], [0, 0])
