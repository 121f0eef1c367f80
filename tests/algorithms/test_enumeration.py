"""What each estimator expects, over every group that a tiny policy can draw, beside the true policy gradient.

Truth is the derivative of a sum over all completions; the estimators are the library's own functions. The measured
biases are those of docs/evidence.md.
"""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from grouprl.algorithms import gae, group_advantages, mismatch_weights, token_advantages
from grouprl.algorithms.named import NAMED
from tabular import (
    ENDING,
    FIXED,
    LOGITS,
    REFERENCE,
    RIGHT_OR_WRONG,
    Advantages,
    World,
    cosine,
    expected_token_update,
    expected_update,
    gradient,
)

WORLDS = {"fixed": FIXED, "ending": ENDING, "right_or_wrong": RIGHT_OR_WRONG}
RLOO = partial(group_advantages, baseline="leave_one_out", scale="none")
CENTERED = partial(group_advantages, baseline="mean", scale="none")


def own_reward(rewards_N: Tensor, group_ids_N: Tensor) -> Tensor:
    return rewards_N


def each_batch_alone(advantages: Advantages) -> Advantages:
    """Every group is a batch for which `advantages` is called once, as the learner does."""

    def of_all(rewards_N: Tensor, group_ids_N: Tensor) -> Tensor:
        batches = [rewards_N[group_ids_N == batch] for batch in group_ids_N.unique()]
        return torch.cat([advantages(batch, torch.zeros(len(batch), dtype=torch.long)) for batch in batches])

    return of_all


def truth(world: World, at: Tensor = LOGITS) -> Tensor:
    return gradient(world.expected_reward, at)


def assert_equal(got: Tensor, expected: Tensor, within: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, atol=within, rtol=0)


def exactly(size: int) -> float:
    """Thirds have no exact float32, which weights are in; halves and quarters have."""
    return 1e-8 if size == 3 else 1e-10


def test_every_completion_is_there_once_and_the_chances_add_up():
    assert [len(world.completions) for world in WORLDS.values()] == [27, 15, 15]
    assert len(set(ENDING.completions)) == 15
    for world in WORLDS.values():
        assert float(world.chances(LOGITS).sum()) == pytest.approx(1, abs=1e-14)
        # The truth itself, by finite differences of one logit.
        up, down = LOGITS.clone(), LOGITS.clone()
        up[5, 1] += 1e-5
        down[5, 1] -= 1e-5
        slope = float(world.expected_reward(up) - world.expected_reward(down)) / 2e-5
        assert float(truth(world)[5, 1]) == pytest.approx(slope, abs=1e-9)


# Unbiased


@pytest.mark.parametrize(("name", "size"), [*itertools.product(WORLDS, (2, 3)), ("ending", 4)])
def test_reinforce_and_rloo_expect_the_policy_gradient(name: str, size: int):
    assert_equal(expected_update(WORLDS[name], size, own_reward), truth(WORLDS[name]), exactly(size))
    assert_equal(expected_update(WORLDS[name], size, RLOO), truth(WORLDS[name]), exactly(size))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_groups_own_mean_shrinks_the_gradient_and_does_not_turn_it(size: int):
    shrunk = (size - 1) / size * truth(ENDING)
    assert_equal(expected_update(ENDING, size, CENTERED), shrunk, exactly(size))
    batch_mean = partial(group_advantages, baseline="batch_mean", scale="none")
    assert_equal(expected_update(ENDING, size, each_batch_alone(batch_mean)), shrunk, exactly(size))


@pytest.mark.parametrize(
    ("name", "share"), [("reinforce", 1.0), ("rloo", 1.0), ("reinforce_batch", 0.5), ("dr_grpo", 0.5)]
)
def test_the_named_algorithms_are_those_estimators(name: str, share: float):
    algorithm = NAMED[name]
    advantages = each_batch_alone(
        lambda rewards_N, groups_N: algorithm.advantage.statistics(rewards_N, groups_N).advantages(rewards_N)
    )
    got = expected_update(ENDING, 2, advantages, algorithm.objective.aggregate, surrogate=algorithm.objective.surrogate)
    assert_equal(got, share * truth(ENDING))


@pytest.mark.parametrize("world", [RIGHT_OR_WRONG, ENDING], ids=["right_or_wrong", "ending"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_pass_at_k_expects_the_gradient_of_the_best_of_its_group(world: World, size: int):
    """Of right or wrong that is 1 - (1 - p)^k; of other rewards the mean of the maximum, a sum over its values."""

    def best(logits: Tensor) -> Tensor:
        chances_Y, rewards_Y = world.chances(logits), world.rewards_Y
        levels = sorted(set(rewards_Y.tolist()))
        up_to = [0, *(chances_Y[rewards_Y <= level].sum() ** size for level in levels)]
        return sum(level * (up_to[at + 1] - up_to[at]) for at, level in enumerate(levels))

    if world is RIGHT_OR_WRONG:
        p = float(world.expected_reward(LOGITS))
        assert float(best(LOGITS)) == pytest.approx(1 - (1 - p) ** size)
    algorithm = NAMED["pass_at_k"]
    advantages = each_batch_alone(lambda *group: algorithm.advantage.statistics(*group).advantages(group[0]))
    got = expected_update(world, size, advantages, algorithm.objective.aggregate, surrogate="plain")
    assert_equal(size * got, gradient(best), 1e-8)


def test_opo_has_the_baseline_of_least_variance_where_each_token_moves_as_much():
    """With equal logits the gradient of a token's log-prob has the squared norm 2/3, and tokens move other logits."""
    even = torch.zeros_like(LOGITS)
    gradients_Y = [gradient(lambda logits, at=at: ENDING.logprobs(logits)[at].sum(), even) for at in range(15)]
    lengths_Y = ENDING.mask_YT.sum(1)
    assert [float(one.square().sum()) for one in gradients_Y] == pytest.approx((lengths_Y * 2 / 3).tolist())
    chances_Y = ENDING.chances(even)

    def variance(baseline: float) -> float:
        moves = [one * (reward - baseline) for one, reward in zip(gradients_Y, ENDING.rewards_Y, strict=True)]
        mean = sum(chance * move for chance, move in zip(chances_Y, moves, strict=True))
        return float(sum(chance * (move - mean).square().sum() for chance, move in zip(chances_Y, moves, strict=True)))

    rows_N = torch.arange(15).repeat_interleave((27 * chances_Y).round().long())  # each as often as it is drawn
    rewards_N, groups_N = ENDING.rewards_Y[rows_N], torch.zeros(27, dtype=torch.long)
    best = float(NAMED["opo"].advantage.compared(rewards_N, groups_N, lengths_Y[rows_N]).baseline_N[0])
    mean = float((chances_Y * ENDING.rewards_Y).sum())
    assert abs(best - mean) > 0.1
    assert variance(best) < min(variance(mean), variance(best - 1e-3), variance(best + 1e-3))
    assert variance(best + 1e-3) == pytest.approx(variance(best - 1e-3), abs=1e-9)  # a parabola, symmetric at its least


def test_without_a_baseline_groups_of_equal_rewards_must_count():
    """`group_advantages` gives them 0: of right or wrong answers, p^(G - 1) of the gradient is lost with them."""
    p = float(RIGHT_OR_WRONG.expected_reward(LOGITS))
    none = partial(group_advantages, baseline="none", scale="none")
    for size in (2, 3, 4):
        expected = (1 - p ** (size - 1)) * truth(RIGHT_OR_WRONG)
        assert_equal(expected_update(RIGHT_OR_WRONG, size, none), expected, exactly(size))


@pytest.mark.parametrize(
    "options",
    [
        {"surrogate": "clip", "clip_low": 0.0, "clip_high": 0.0},
        {"surrogate": "clip", "clip_low": 0.9, "clip_high": 7.0, "dual_clip": 1.5},
        {"surrogate": "clip", "ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
        {"surrogate": "cispo", "clip_low": 0.0, "clip_high": 0.0},
        {"surrogate": "cispo", "ratio": "sequence", "clip_low": 1.0, "clip_high": 5.0},
        {"surrogate": "sapo", "tau_pos": 3.0, "tau_neg": 0.5},
        {"surrogate": "gmpo", "clip_low": 0.33, "clip_high": 0.49},
        {"surrogate": "vespo", "k_pos": 0.5, "lambda_neg": 7.0},
        {"surrogate": "plain", "drift_coef": 9.0},
        {"off_policy_delta": 0.0},
        {"surrogate": "plain", "divergence_tv": 0.0, "divergence_kl": 1e-9},
    ],
)
@pytest.mark.parametrize("aggregate", ["sequence_mean", "token_mean", "prompt_mean", "constant"])
def test_on_policy_every_surrogate_is_the_plain_policy_gradient(options: dict[str, object], aggregate: str):
    plain = expected_update(ENDING, 2, group_advantages, aggregate, surrogate="plain")
    assert_equal(expected_update(ENDING, 2, group_advantages, aggregate, **options), plain, 1e-15)


# Biased, and by how much


@pytest.mark.parametrize(
    ("size", "direction", "length"), [(2, 0.989665, 0.639251), (3, 0.989711, 0.865384), (4, 0.991910, 0.970764)]
)
def test_dividing_by_the_deviation_turns_the_gradient(size: int, direction: float, length: float):
    got = expected_update(FIXED, size, group_advantages)
    assert cosine(got, truth(FIXED)) == pytest.approx(direction, abs=1e-5)
    assert float(got.norm() / truth(FIXED).norm()) == pytest.approx(length, abs=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_of_right_or_wrong_the_deviation_scales_a_problem_and_does_not_turn_it(size: int, sharpness: float):
    """With k of G right, right ones get sqrt((G-k)/k) and wrong ones -sqrt(k/(G-k)): factor E[sqrt(k(G-k))] / (Gpq)."""
    at = sharpness * LOGITS
    p = float(RIGHT_OR_WRONG.expected_reward(at))
    chance = [math.comb(size, k) * p**k * (1 - p) ** (size - k) for k in range(size + 1)]
    factor = sum(c * math.sqrt(k * (size - k)) for k, c in enumerate(chance)) / (size * p * (1 - p))
    got = expected_update(RIGHT_OR_WRONG, size, partial(group_advantages, eps=0.0), at=at)
    assert_equal(got, factor * truth(RIGHT_OR_WRONG, at), 1e-7)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_dividing_by_the_own_length_favors_short_gains(size: int):
    """The gradient of E[(reward - expected reward) / length], whatever the group size: cosine 0.967 with the truth."""

    def per_token(logits: Tensor) -> Tensor:
        surplus_Y = ENDING.rewards_Y - ENDING.expected_reward(LOGITS)
        return (ENDING.chances(logits) * surplus_Y / ENDING.mask_YT.sum(1)).sum()

    got = expected_update(ENDING, size, RLOO, "sequence_mean")
    assert_equal(got, gradient(per_token), 1e-7)
    assert cosine(got, truth(ENDING)) == pytest.approx(0.967409, abs=1e-6)


@pytest.mark.parametrize(
    ("size", "direction", "length"), [(2, 0.997886, 0.464464), (3, 0.998845, 0.455839), (4, 0.999299, 0.448460)]
)
def test_dividing_by_the_tokens_of_the_batch_turns_it_less_and_less(size: int, direction: float, length: float):
    got = expected_update(ENDING, size, RLOO, "token_mean")
    assert cosine(got, truth(ENDING)) == pytest.approx(direction, abs=1e-6)
    assert float(got.norm() / truth(ENDING).norm()) == pytest.approx(length, abs=1e-6)


# Tokens: rewards to come, a critic, a sampler that is another policy


def last_token_rewards(world: World) -> Tensor:
    last_YT = torch.arange(3) == world.mask_YT.sum(1, keepdim=True) - 1
    return torch.where(last_YT, world.rewards_Y[:, None], 0.0)


def true_values(world: World) -> Tensor:
    """[Y, T] expected reward before each token, by sorting the completions by what they begin with."""
    chances = world.chances(LOGITS).tolist()
    values = torch.zeros(world.mask_YT.shape, dtype=torch.float64)
    for row, completion in enumerate(world.completions):
        for t in range(len(completion)):
            same = [y for y, other in enumerate(world.completions) if other[:t] == completion[:t] and len(other) > t]
            earned = sum(chances[y] * float(world.rewards_Y[y]) for y in same)
            values[row, t] = earned / sum(chances[y] for y in same)
    return values


WRONG_VALUES = (torch.arange(13.0, dtype=torch.float64) ** 3).sin()[ENDING.prefix_YT]


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_a_perfect_critic_expects_the_policy_gradient_at_any_lam(lam: float):
    advantages_YT, returns_YT = gae(last_token_rewards(ENDING), true_values(ENDING), ENDING.mask_YT, lam=lam)
    assert_equal(expected_token_update(ENDING, advantages_YT), truth(ENDING))
    assert float((ENDING.chances(LOGITS) * returns_YT[:, 0]).sum()) == pytest.approx(
        float(ENDING.expected_reward(LOGITS)), abs=1e-12
    )


def test_a_wrong_critic_does_so_at_lam_1_alone():
    directions = []
    for lam in (1.0, 0.95, 0.5, 0.0):
        advantages_YT, _ = gae(last_token_rewards(ENDING), WRONG_VALUES, ENDING.mask_YT, lam=lam)
        directions.append(cosine(expected_token_update(ENDING, advantages_YT), truth(ENDING)))
    assert directions == pytest.approx([1.0, 0.999868, 0.985817, 0.928265], abs=1e-6)


def test_rewards_to_come_expect_the_policy_gradient():
    advantages_YT, _ = token_advantages(last_token_rewards(ENDING), ENDING.mask_YT, center=False, normalize=False)
    assert_equal(expected_token_update(ENDING, advantages_YT.double()), truth(ENDING))


def test_completions_of_another_sampler_need_the_ratio_of_whole_completions():
    policy_YT, sampler_YT = ENDING.logprobs(LOGITS), ENDING.logprobs(REFERENCE)
    directions = []
    for level, cap in (("sequence", 1e9), ("sequence", 2.0), ("token", 1e9)):
        weights_YT = mismatch_weights(policy_YT, sampler_YT, ENDING.mask_YT, level=level, cap=cap)
        got = expected_token_update(ENDING, weights_YT * ENDING.rewards_Y[:, None], sampler=REFERENCE)
        directions.append(cosine(got, truth(ENDING)))
        if (level, cap) == ("sequence", 1e9):
            assert_equal(got, truth(ENDING))
    uncorrected = expected_token_update(ENDING, ENDING.rewards_Y, sampler=REFERENCE)
    directions.append(cosine(uncorrected, truth(ENDING)))
    assert directions == pytest.approx([1.0, 0.991475, 0.989846, 0.960095], abs=1e-6)
