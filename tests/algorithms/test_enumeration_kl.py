"""What the KL estimators expect, in the loss and in the reward, over every completion of a tiny policy.

Truth is KL by its definition: over whole completions, or over the tokens at each prefix that the policy visits.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from grouprl.algorithms import dpo_loss, group_advantages, kl_estimate, policy_loss, token_advantages
from tabular import (
    ENDING,
    FIXED,
    LOGITS,
    PREFIXES,
    REFERENCE,
    World,
    cosine,
    expected_token_update,
    expected_update,
    gradient,
)

WORLDS = pytest.mark.parametrize("world", [FIXED, ENDING], ids=["fixed", "ending"])


def assert_equal(got: Tensor, expected: Tensor, within: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, atol=within, rtol=0)


def per_token(world: World, kind: str, logits: Tensor = LOGITS) -> Tensor:
    """[Y, T] the library's estimate, 0 in the padding."""
    return kl_estimate(world.logprobs(logits), world.logprobs(REFERENCE), kind=kind)


def loss_gradient(world: World, kind: str) -> Tensor:
    """What descent on the KL term alone expects to descend."""
    nothing = torch.zeros(len(world.completions), dtype=torch.float64)
    reference = world.logprobs(REFERENCE)
    return -expected_token_update(world, nothing, ref_logprobs_NT=reference, kl_coef=1.0, kl=kind)


def visits(world: World) -> Tensor:
    """[13] chance that a completion passes a prefix."""
    passed = world.chances(LOGITS)[:, None].expand_as(world.mask_YT)[world.mask_YT]
    return torch.zeros(PREFIXES, dtype=torch.float64).index_add_(0, world.prefix_YT[world.mask_YT], passed)


def kl_of_tokens(from_logits: Tensor, to_logits: Tensor) -> Tensor:
    """[13] by definition, at each prefix."""
    log_p, log_q = from_logits.log_softmax(-1), to_logits.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def at_visited_prefixes(world: World, kl: Callable[[Tensor], Tensor]) -> Tensor:
    """Gradient of the KL of tokens, how often each prefix is visited held as it is."""
    held = visits(world)
    return gradient(lambda logits: (held * kl(logits)).sum())


@WORLDS
def test_k1_and_k3_expect_the_kl_of_completions_and_k2_does_not(world: World):
    true = float(world.sequence_kl(LOGITS, REFERENCE))
    assert true == pytest.approx(float((visits(world) * kl_of_tokens(LOGITS, REFERENCE)).sum()), abs=1e-12)
    k1, k2, k3 = (float((world.chances(LOGITS) @ per_token(world, kind)).sum()) for kind in ("k1", "k2", "k3"))
    assert [k1, k3] == pytest.approx([true, true], abs=1e-12)
    assert abs(k2 - true) > 0.008


@WORLDS
def test_k1_in_the_loss_expects_no_gradient_at_all(world: World):
    assert_equal(loss_gradient(world, "k1"), torch.zeros_like(LOGITS))


@WORLDS
def test_k2_in_the_loss_descends_the_kl_of_tokens_from_policy_to_reference(world: World):
    expected = at_visited_prefixes(world, lambda logits: kl_of_tokens(logits, REFERENCE))
    assert_equal(loss_gradient(world, "k2"), expected)


@WORLDS
def test_k3_in_the_loss_descends_the_kl_of_tokens_from_reference_to_policy(world: World):
    """E[(1 - p_ref / p) grad log p] = -sum p_ref grad log p: the other direction than the one it estimates."""
    expected = at_visited_prefixes(world, lambda logits: kl_of_tokens(REFERENCE, logits))
    assert_equal(loss_gradient(world, "k3"), expected)


@WORLDS
@pytest.mark.parametrize("kind", ["k1", "k3"])
@pytest.mark.parametrize("moved", [0.0, 0.7])
def test_an_unbiased_kl_descends_the_kl_of_tokens_whoever_drew_them(world: World, kind: str, moved: float):
    """The prefixes that the sampler visits, and at each of them the KL from policy to reference, in full."""
    sampler = LOGITS + moved * (REFERENCE - LOGITS).flip(0)
    chances_Y = world.chances(sampler)
    weights_YT, nothing = world.mask_YT * chances_Y[:, None], torch.zeros(len(chances_Y), dtype=torch.float64)
    anchor = {"ref_logprobs_NT": world.logprobs(REFERENCE), "kl_coef": 1.0, "kl": kind, "kl_unbiased": True}
    got = gradient(
        lambda logits: policy_loss(world.logprobs(logits), world.logprobs(sampler), nothing, weights_YT, **anchor)[0]
    )
    held = torch.zeros(PREFIXES, dtype=torch.float64)
    held.index_add_(0, world.prefix_YT[world.mask_YT], chances_Y[:, None].expand_as(world.mask_YT)[world.mask_YT])
    assert_equal(got, gradient(lambda logits: (held * kl_of_tokens(logits, REFERENCE)).sum()))


@WORLDS
def test_k1_in_the_reward_descends_the_kl_of_completions(world: World):
    expected = -gradient(lambda logits: world.sequence_kl(logits, REFERENCE))
    assert_equal(expected_token_update(world, -per_token(world, "k1").sum(1)), expected)
    to_come_YT, _ = token_advantages(-per_token(world, "k1"), world.mask_YT, center=False, normalize=False)
    assert_equal(expected_token_update(world, to_come_YT.double()), expected, 1e-7)


@WORLDS
def test_k3_in_the_reward_misses_what_k3_in_the_loss_would_add(world: World):
    """Of a mean of k3 the gradient has two parts, E[k3 grad log p] and E[grad k3]; a reward has the first alone."""
    whole = gradient(lambda logits: world.sequence_kl(logits, REFERENCE))
    in_reward = -expected_token_update(world, -per_token(world, "k3").sum(1))
    assert_equal(in_reward + loss_gradient(world, "k3"), whole)
    assert float((in_reward - whole).norm() / whole.norm()) > 0.5


def test_in_the_loss_no_kind_sees_where_its_tokens_lead():
    """The gradient of the KL of completions also moves which prefixes are visited; cosines measured."""
    whole = gradient(lambda logits: ENDING.sequence_kl(logits, REFERENCE))
    directions = {kind: cosine(loss_gradient(ENDING, kind), whole) for kind in ("k2", "k3")}
    assert directions == pytest.approx({"k2": 0.99677, "k3": 0.92292}, abs=1e-5)


# Where the anchored algorithms come to rest

BETA = 1.0


def best_policy(world: World) -> Tensor:
    """Logits of the policy proportional to p_ref exp(reward / beta), which maximizes reward - beta KL."""
    weight_Y = world.chances(REFERENCE) * (world.rewards_Y / BETA).exp()
    at = world.prefix_YT[world.mask_YT], world.token_YT[world.mask_YT]
    sums = torch.zeros_like(LOGITS)
    sums.index_put_(at, weight_Y[:, None].expand_as(world.mask_YT)[world.mask_YT], accumulate=True)
    return sums.clamp(min=1e-300).log()  # a prefix after the end is never reached


@WORLDS
def test_the_best_policy_is_at_rest_under_k1_in_the_reward(world: World):
    best = best_policy(world)
    goal = gradient(lambda logits: world.expected_reward(logits) - BETA * world.sequence_kl(logits, REFERENCE), best)
    assert_equal(goal, torch.zeros_like(goal))
    penalized_Y = world.rewards_Y - BETA * per_token(world, "k1", best).sum(1)
    assert_equal(expected_token_update(world, penalized_Y, best, best), torch.zeros_like(best))


@pytest.mark.parametrize(("kind", "drift"), [("k2", 0.60517), ("k3", 0.61867)])
def test_it_is_not_at_rest_under_a_kl_in_the_loss(kind: str, drift: float):
    """Size of the update there, beside that of the reward alone."""
    best, rloo = best_policy(ENDING), partial(group_advantages, baseline="leave_one_out", scale="none")
    reward = expected_update(ENDING, 2, rloo, at=best)
    options = {"ref_logprobs_NT": ENDING.logprobs(REFERENCE), "kl_coef": BETA, "kl": kind}
    update = expected_token_update(ENDING, ENDING.rewards_Y, best, best, **options)
    assert float(update.norm() / reward.norm()) == pytest.approx(drift, abs=1e-5)


def test_dpo_rests_at_the_best_policy_when_preferences_follow_the_rewards():
    """Pairs of any two completions, preferred with the chance sigmoid of the difference of their rewards."""
    rows = torch.cartesian_prod(torch.arange(15), torch.arange(15))
    chosen, rejected = rows.unbind(1)
    chance = (ENDING.rewards_Y[chosen] - ENDING.rewards_Y[rejected]).sigmoid()
    reference = ENDING.logprobs(REFERENCE).sum(1)

    def loss(logits: Tensor) -> Tensor:
        policy = ENDING.logprobs(logits).sum(1)
        pairs = torch.stack([policy[chosen], policy[rejected], reference[chosen], reference[rejected]])
        losses = [dpo_loss(*pair[:, None], beta=BETA)[0] for pair in pairs.unbind(1)]
        return (chance * torch.stack(losses)).sum()

    assert_equal(gradient(loss, best_policy(ENDING)), torch.zeros_like(LOGITS))
    assert gradient(loss, REFERENCE).norm() > 1
