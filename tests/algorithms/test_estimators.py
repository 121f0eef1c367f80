"""How much estimators scatter and what they weigh: exact, over every group of right and wrong answers.

benchmarks/estimators.py draws the same quantities from sampled groups.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from grouprl.algorithms import group_advantages, kl_estimate
from tabular import ENDING, LOGITS, gradient, groups

RATE = 0.3


def all_groups(size: int, rate: float = RATE) -> tuple[Tensor, Tensor]:
    """[2^G, G] rewards of every group, and [2^G] how likely it is."""
    rewards_MG = torch.tensor(list(itertools.product((0.0, 1.0), repeat=size)), dtype=torch.float64)
    right_M = rewards_MG.sum(1)
    return rewards_MG, rate**right_M * (1 - rate) ** (size - right_M)


def advantages_of(rewards_MG: Tensor, **options: str | float) -> Tensor:
    ids_MG = torch.arange(len(rewards_MG))[:, None].expand_as(rewards_MG)
    return group_advantages(rewards_MG.flatten(), ids_MG.flatten(), **options).double().view_as(rewards_MG)


# The baseline


@pytest.mark.parametrize(("baseline", "companions"), [("mean", 0), ("leave_one_out", 1)])
def test_the_variance_of_the_baseline_falls_as_one_over_the_rewards_in_it(baseline: str, companions: int):
    for size in (2, 4, 8, 12):
        rewards_MG, chance_M = all_groups(size)
        baseline_M = (rewards_MG - advantages_of(rewards_MG, baseline=baseline, scale="none"))[:, 0]
        mean = float(chance_M @ baseline_M)
        variance = float(chance_M @ (baseline_M - mean).square())
        assert mean == pytest.approx(RATE, abs=1e-6)
        assert variance * (size - companions) == pytest.approx(RATE * (1 - RATE), abs=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_a_baseline_takes_variance_from_the_gradient(size: int):
    """Total variance of the gradient of one group, each estimator scaled to be unbiased."""
    groups_MG, orders_M = groups(15, size)
    chance_M = orders_M * ENDING.chances(LOGITS)[groups_MG].prod(1)
    scores_YK = torch.stack([gradient(lambda at, y=y: ENDING.logprobs(at)[y].sum()).flatten() for y in range(15)])
    rewards_MG = ENDING.rewards_Y[groups_MG]
    candidates = {
        "none": rewards_MG,
        "mean": advantages_of(rewards_MG, scale="none") * size / (size - 1),
        "leave_one_out": advantages_of(rewards_MG, baseline="leave_one_out", scale="none"),
        "expected reward": rewards_MG - ENDING.expected_reward(LOGITS),
    }
    variances = {}
    for name, advantages_MG in candidates.items():
        estimate_MK = (advantages_MG[..., None] * scores_YK[groups_MG]).mean(1)
        centered_MK = estimate_MK - chance_M @ estimate_MK
        variances[name] = float(chance_M @ centered_MK.square().sum(1))
    assert variances["mean"] == pytest.approx(variances["leave_one_out"], rel=1e-6)
    assert variances["expected reward"] < variances["leave_one_out"]
    # The group of two pays for its own baseline with more scatter than it takes away; four do not.
    assert (variances["leave_one_out"] < variances["none"]) == (size == 4)


# KL


def policies(distance: float, sharpness: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probs of a policy of 64 tokens, and of a reference so far away in logits and so much less sharp."""
    at = torch.arange(64, dtype=torch.float64)
    logits = 2 * (at * at).sin()
    return (sharpness * logits).log_softmax(0), (logits + distance * (at**3).cos()).log_softmax(0)


def moments(kind: str, distance: float, sharpness: float = 1.0) -> tuple[float, float]:
    policy, reference = policies(distance, sharpness)
    estimate = kl_estimate(policy, reference, kind=kind)
    mean = float(policy.exp() @ estimate)
    return mean, math.sqrt(float(policy.exp() @ (estimate - mean).square()))


def test_near_the_reference_k3_scatters_with_the_square_of_the_distance_and_k1_with_the_distance():
    for kind, power in (("k1", 1), ("k2", 2), ("k3", 2)):
        _, far = moments(kind, 0.02)
        _, near = moments(kind, 0.01)
        assert far / near == pytest.approx(2**power, rel=0.02)
    assert moments("k3", 0.1)[1] < 0.05 * moments("k1", 0.1)[1]


def test_k3_of_a_sharpened_policy_scatters_more_than_k1():
    """A token that the policy has all but dropped comes up rarely, and then with p_ref / p in the hundreds."""
    assert moments("k1", 0.0, sharpness=2.0) == pytest.approx((0.1394, 0.4039), abs=1e-4)
    assert moments("k3", 0.0, sharpness=2.0) == pytest.approx((0.1394, 0.8771), abs=1e-4)
    assert moments("k3", 0.0, sharpness=4.0)[1] > 50 * moments("k1", 0.0, sharpness=4.0)[1]


# What a group weighs


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 0.9])
def test_the_advantages_of_a_group_by_pass_rate(rate: float):
    """Mean |advantage|: 2 pq (G - 1) / G of centered rewards, 2 pq of RLOO, more than either after the deviation."""
    size = 8
    rewards_MG, chance_M = all_groups(size, rate)
    mass = {
        name: float(chance_M @ advantages_of(rewards_MG, **options).abs().mean(1))
        for name, options in {
            "grpo": {},
            "dr_grpo": {"scale": "none"},
            "rloo": {"baseline": "leave_one_out", "scale": "none"},
        }.items()
    }
    spread = rate * (1 - rate)
    assert mass["dr_grpo"] == pytest.approx(2 * spread * 7 / 8, abs=1e-6)
    assert mass["rloo"] == pytest.approx(2 * spread, abs=1e-6)
    ways = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
    by_count = sum(way * 2 * math.sqrt(k * (size - k)) / size for k, way in enumerate(ways))
    assert mass["grpo"] == pytest.approx(by_count, abs=1e-5)
    assert mass["dr_grpo"] < mass["grpo"] < 2 * math.sqrt(spread)
