"""Lines of the learner that no other test holds alone: which tokens count, and in which denominators."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grouprl.algorithms import (
    group_advantages,
    kept_groups,
    mismatch_weights,
    policy_loss,
    token_advantages,
    token_weights,
    value_loss,
)
from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.entropy import Entropy
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Updates
from grouprl.algorithms.surrogates import left_out, too_far
from grouprl.learner import PolicyEvaluation, assign_credit, make_batch
from grouprl.learner.batch import UpdateWork
from grouprl.models.critic import Critic
from grouprl.models.load import frozen_copy
from grouprl.tools.proof.replay import _difference
from grouprl.types import (
    Batch,
    Completion,
    Group,
    Problem,
    RewardOutcome,
    Sampling,
    StepReward,
    StopReason,
    UserError,
)
from learner_setting import SAMPLING, GradientKeeper, batch_of, credit_of, learner_of, loaded, sampled
from variants import variant

NAN = math.nan


def completion(index: int, length: int, stop: StopReason) -> Completion:
    return Completion(index, (5,) * length, (-0.5,) * length, (-0.5,) * length, "", stop, 0)


def three_ends() -> list[Group]:
    """Completions of 3, 2 and 3 tokens: one ends, one is truncated, one meets a stop string."""
    reasons = (StopReason.END, StopReason.LENGTH, StopReason.STOP_STRING)
    members = (completion(at, n, stop) for at, (n, stop) in enumerate(zip((3, 2, 3), reasons, strict=True)))
    return [Group(Problem("one", "one"), (7,), tuple(members))]


@pytest.mark.parametrize(("mask_overlong", "trained"), [(False, [3, 2, 3]), (True, [3, 0, 3])])
def test_masking_leaves_out_truncated_completions_alone(mask_overlong: bool, trained: list[int]) -> None:
    batch = make_batch(three_ends(), Sampling(max_tokens=4), mask_overlong=mask_overlong)
    assert batch.trained_NT.sum(1).tolist() == trained
    assert batch.mask_NT.sum(1).tolist() == [3, 2, 3]


def test_a_batch_without_baseline_but_with_its_deviation_has_no_signal_in_equal_rewards() -> None:
    """Rewards 2 and 0 deviate by 1 from their mean, so they stay 2 and 0; equal ones would be divided by nothing."""
    advantage = variant("reinforce_batch", baseline="none", scale="batch_std", eps=0.0).advantage
    one = torch.zeros(2, dtype=torch.long)
    assert advantage.statistics(torch.tensor([2.0, 0.0]), one).advantages(torch.tensor([2.0, 0.0])).tolist() == [2, 0]
    assert advantage.statistics(torch.tensor([3.0, 3.0]), one).advantages(torch.tensor([3.0, 3.0])).tolist() == [0, 0]
    # An invalid reward has no part in the deviation: 4 and 0 deviate by 2.
    rewards = torch.tensor([4.0, NAN, 0.0])
    assert advantage.statistics(rewards, torch.zeros(3)).advantages(rewards).tolist() == [2, 0, 0]


def test_the_mean_of_the_batch_is_not_the_mean_of_the_group() -> None:
    """Rewards 1, 0 and 4, 3: the batch has mean 2, the groups 0.5 and 3.5."""
    rewards, groups = torch.tensor([1.0, 0.0, 4.0, 3.0]), torch.tensor([0, 0, 1, 1])
    assert group_advantages(rewards, groups, baseline="batch_mean", scale="none").tolist() == [-1, -2, 2, 1]


def test_the_steps_of_an_invalid_completion_teach_nothing() -> None:
    """Group 1, 0 and an invalid completion whose step was right: its step is in no mean, and it has no advantage."""
    batch = make_batch(three_ends(), Sampling(max_tokens=4))
    outcomes = [
        RewardOutcome(1.0, {"right": 1.0}),
        RewardOutcome(NAN, {"right": None}, "timed out", steps=(StepReward(0, 1.0),)),
        RewardOutcome(0.0, {"right": 0.0}),
    ]
    algorithm = variant("grpo_process", eps=0.0)
    credit = assign_credit(outcomes, {"right": 1.0}, batch, PolicyEvaluation(), algorithm, kl_coef=0.0)
    assert credit.advantages_NT.tolist() == [[1, 1, 1], [0, 0, 0], [-1, -1, -1]]


@pytest.mark.parametrize(("low", "high"), [(0.5, None), (None, 0.5), (0.5, 0.5)])
def test_a_group_at_the_bound_is_kept(low: float | None, high: float | None) -> None:
    assert kept_groups([[0.0, 1.0]], drop_below=low, drop_above=high) == [True]


def test_the_entropy_mask_is_chosen_among_the_trained_tokens(tiny: Path) -> None:
    """Row 1 is truncated and has the highest entropies: half of the six trained tokens are the six's own best."""
    model = loaded(tiny)
    learner = learner_of(model, variant("grpo", kl_coef=0.0, entropy_share=0.5, mask_overlong=True))
    batch = make_batch(three_ends(), Sampling(max_tokens=4), mask_overlong=True)
    entropies = torch.tensor([[0.1, 0.9, 0.2], [5.0, 6.0, 0.0], [0.7, 0.3, 0.8]])
    before = PolicyEvaluation(entropies_NT=entropies)
    credit = Credit(torch.ones(3, 3) * batch.mask_NT)
    result = learner.learn(batch, credit, before, step=2)
    assert result.metrics["entropy_threshold"] == pytest.approx(0.7)  # 0.9, 0.8, 0.7


class EveryGradient(GradientKeeper):
    """Keeps the gradient of every update."""

    def step(self) -> float:
        held = {name: weight.grad.clone() for name, weight in self.model.named_parameters() if weight.grad is not None}
        self.__dict__.setdefault("gradients", []).append(held)
        self.model.zero_grad(set_to_none=True)
        self.updates += 1
        return 0.0


def critic_gradients(folder: Path, batch: Batch, returns_NT: Tensor, count: int, passes: int = 1) -> list[Tensor]:
    model = loaded(folder)
    critic = Critic(model, shared=False)
    with torch.no_grad():
        critic.head.weight.copy_(torch.sin(torch.arange(critic.head.weight.numel())).view_as(critic.head.weight))
    keeper = EveryGradient(critic)
    learner = learner_of(
        model,
        variant("ppo", kl_coef=0.0, minibatches=count, passes=passes),
        optimizer=EveryGradient(model),
        critic=critic,
        critic_optimizer=keeper,
    )
    credit = Credit(torch.ones(batch.mask_NT.shape) * batch.mask_NT, returns_NT, batch.mask_NT)
    learner.learn(batch, credit, learner.evaluate(batch), step=2)
    return [gradient["head.weight"] for gradient in keeper.gradients]


def test_the_value_loss_is_a_mean_over_the_tokens_of_the_minibatch(tiny: Path) -> None:
    """Three groups in three updates: the critic's gradient in each is the one of a batch of that group alone."""
    groups = sampled(tiny, SAMPLING)
    returns = [torch.full((batch_of([group]).mask_NT.shape), 1.0 + at) for at, group in enumerate(groups)]
    whole = batch_of(groups)
    returns_NT = (1.0 + torch.tensor(whole.group_of_N))[:, None].expand(whole.mask_NT.shape) * whole.mask_NT
    split = critic_gradients(tiny, whole, returns_NT, 3)
    alone = [
        critic_gradients(tiny, batch_of([group]), own * batch_of([group]).mask_NT, 1)[0]
        for group, own in zip(groups, returns, strict=True)
    ]
    assert len(split) == 3
    ours, theirs = (sorted(float(one.norm()) for one in gradients) for gradients in (split, alone))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_every_named_algorithm_that_masks_or_penalizes_says_so() -> None:
    assert [name for name in NAMED if NAMED[name].groups.overlong_buffer] == ["dapo"]
    assert not any(NAMED[name].groups.mask_overlong for name in NAMED)


def test_a_weight_at_the_bound_of_the_correction_stays() -> None:
    same = torch.zeros(1, 1)
    assert mismatch_weights(same, same, torch.ones(1, 1), kind="mask", cap=1.0, floor=1.0).tolist() == [[1]]


def test_icepop_masks_below_a_half_and_above_two() -> None:
    weights = torch.tensor([[0.45, 0.55, 1.9, 2.1]])
    found = mismatch_weights(weights.log(), torch.zeros(1, 4), torch.ones(1, 4), kind="mask")
    assert found.tolist() == [pytest.approx([0, 0.55, 1.9, 0])]


def test_a_completion_is_too_far_by_its_mean_over_tokens() -> None:
    """Gaps of 0.3 and 0.3 nats: the mean is below 0.4, the sum is not. A positive advantage is never too far."""
    mask, policy = torch.ones(3, 2, dtype=torch.bool), torch.zeros(3, 2)
    sampler, advantages = torch.tensor([[0.3, 0.3], [0.5, 0.5], [0.5, 0.5]]), torch.tensor([[-1.0], [-1.0], [1.0]])
    far = too_far(policy, sampler, advantages.expand(3, 2), mask, delta=0.4)
    assert far.tolist() == [[False, False], [True, True], [False, False]]
    # A mean of exactly delta is not above it.
    assert not too_far(policy, torch.full((3, 2), 0.5), -torch.ones(3, 2), mask, delta=0.5).any()


def test_weights_are_float32_and_what_a_loss_reports_has_no_gradient() -> None:
    mask = torch.ones(1, 2, dtype=torch.float64)
    assert token_weights(mask).dtype == torch.float32
    logprobs = torch.zeros(1, 2, requires_grad=True)
    _, stats = policy_loss(
        logprobs, torch.zeros(1, 2), torch.ones(1), token_weights(mask), ref_logprobs_NT=logprobs + 1
    )
    assert not any(value.requires_grad for value in stats.values())


def test_a_reference_is_refreshed_after_every_nth_step_and_needs_a_weight() -> None:
    third = variant("grpo", refresh_reference=3)
    assert [third.refreshes_reference(step) for step in range(1, 7)] == [False, False, True] * 2
    assert Kl(kl_coef=1.0).kl_coef == 1
    with pytest.raises(UserError, match="expected more than 0, got 0"):
        Kl(kl_coef=0.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rounding_of_values_is_no_advantage_whatever_their_sign(sign: float) -> None:
    """Values near 1000 in float32 are 6e-5 apart; rewards and values of 0 give 0, not 0 / 0."""
    values = sign * torch.tensor([[1000.0, 1000.0], [1000.0 + 2**-14, 1000.0]])
    rewards = torch.tensor([[0.0, sign * 1000.0]] * 2)
    advantages, _ = token_advantages(rewards, torch.ones(2, 2), values_NT=values, eps=0.0)
    assert advantages.tolist() == [[0, 0], [0, 0]]
    nothing, _ = token_advantages(torch.zeros(2, 2), torch.ones(2, 2), eps=0.0)
    assert nothing.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_policy_on_either_side_of_its_reference_is_away_from_it(tiny: Path, sign: float) -> None:
    model, batch = loaded(tiny), batch_of(sampled(tiny, SAMPLING))
    learner = learner_of(model, variant("grpo"), reference=frozen_copy(model))
    assert learner.evaluate(batch).at_reference
    batch.old_logprobs_NT[3, 0] += sign * 0.001
    assert not learner.evaluate(batch).at_reference


def test_minibatches_have_another_order_in_every_pass_with_a_critic_too(tiny: Path) -> None:
    """Nothing moves, so an update has the gradient of its group: the three groups, in three orders."""
    batch = batch_of(sampled(tiny, SAMPLING))
    returns_NT = (1.0 + torch.tensor(batch.group_of_N))[:, None].expand(batch.mask_NT.shape) * batch.mask_NT
    norms = [round(float(one.norm()), 4) for one in critic_gradients(tiny, batch, returns_NT, 3, passes=4)]
    orders = [tuple(norms[at : at + 3]) for at in range(0, 12, 3)]
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(orders[0]))}
    assert len(set(orders)) > 1


def test_a_correction_alone_has_no_entropy_threshold(tiny: Path) -> None:
    batch = batch_of(sampled(tiny, SAMPLING))
    learner = learner_of(loaded(tiny), variant("grpo", kl_coef=0.0, correction="truncate"))
    result = learner.learn(batch, credit_of(batch), learner.evaluate(batch), step=2)
    assert "entropy_threshold" not in result.metrics
    assert "low_entropy" not in result.unused


def test_a_batch_whose_signal_is_truncated_has_none() -> None:
    """Row 1 is truncated and the only one with an advantage."""
    batch = make_batch(three_ends(), Sampling(max_tokens=4), mask_overlong=True)
    work = [
        UpdateWork.of(
            batch,
            Credit(torch.tensor(column)[:, None] * batch.mask_NT),
            PolicyEvaluation(),
            variant("grpo"),
        )[0]
        for column in ([0.0, 1.0, 0.0], [1.0, 1.0, 0.0])
    ]
    assert [one.has_signal for one in work] == [False, True]


def test_a_token_is_left_out_by_either_limit() -> None:
    """Row 0 fell from 0.5 to 0.1, bad: too far, and diverged. Row 1 rose from 0.1 to 0.6, good: diverged. Row 2 fell
    from 0.02 to 0.01, bad: too far alone."""
    policy = torch.tensor([[0.1], [0.6], [0.01]]).log()
    sampler = torch.tensor([[0.5], [0.1], [0.02]]).log()
    advantages, mask = torch.tensor([[-1.0], [1.0], [-1.0]]), torch.ones(3, 1, dtype=torch.bool)
    assert left_out(policy, sampler, advantages, mask, 0.5, 0.15, None).tolist() == [[True], [True], [True]]
    assert left_out(policy, sampler, advantages, mask, 0.5, None, None).tolist() == [[True], [False], [True]]
    assert left_out(policy, sampler, advantages, mask, None, 0.15, None).tolist() == [[True], [True], [False]]


def test_eps_is_added_to_the_deviation_of_a_batch() -> None:
    rewards, groups = torch.tensor([1.0, -1.0]), torch.tensor([0, 0])
    assert group_advantages(rewards, groups, scale="batch_std", eps=1.0).tolist() == [0.5, -0.5]


def test_rewards_that_differ_by_little_have_a_signal() -> None:
    """Equal is exact: 1e-7 and 0 deviate by half of it; neighbors of 2^24, which float32 rounds away, by 0.82."""
    one = torch.zeros(2, dtype=torch.long)
    assert group_advantages(torch.tensor([1e-7, 0.0]).double(), one, eps=0.0).tolist() == pytest.approx([1, -1])
    large = torch.tensor([2.0**24, 2.0**24 + 1, 2.0**24 + 2], dtype=torch.float64)
    found = group_advantages(large, torch.zeros(3, dtype=torch.long), eps=0.0)
    assert found.tolist() == pytest.approx([-math.sqrt(1.5), 0, math.sqrt(1.5)])


def test_a_paused_entropy_coefficient_moves_on_from_where_it_was() -> None:
    steered = Entropy(entropy_target=1.0, entropy_step=0.01)
    assert steered.next_coefs((0.5, 0.0), 0.9) == pytest.approx((0.51, 0.51))
    assert steered.next_coefs((0.5, 0.5), 1.1) == pytest.approx((0.49, 0.0))
    assert steered.next_coefs((0.5, 0.0), NAN) == (0.5, 0.0)
    assert Entropy(entropy_coef=0.2).next_coefs((0.5, 0.1), 0.9) == (0.5, 0.1)


def test_dppo_has_the_numbers_of_its_paper() -> None:
    dppo = NAMED["dppo"]
    assert isinstance(dppo.objective, Plain)
    assert (dppo.objective.divergence_tv, dppo.objective.aggregate, dppo.kl) == (0.15, "token_mean", None)
    assert dppo.updates == Updates(passes=1, minibatches=4)


def test_a_value_is_clipped_on_both_sides() -> None:
    """Values fell from 1 to 0 and rose from 0 to 1, both right: the bound of 0.2 leaves errors of 0.8."""
    mask = torch.ones(1, 2)
    values, old = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    for place in (0, 1):
        weights = torch.zeros(1, 2)
        weights[0, place] = 1.0
        loss, stats = value_loss(values, old, values.clone(), weights * mask, clip=0.2)
        assert float(loss) == pytest.approx(0.32)
        assert float(stats["value_clip_fraction"]) == 1


class Turns(GradientKeeper):
    """Keeps the number of every update."""

    def step(self) -> float:
        self.__dict__.setdefault("turns", []).append(self.turn)
        return super().step()


def test_updates_are_numbered_through_the_run(tiny: Path) -> None:
    """Step 3 of a run with 2 passes of 2 updates: 8 updates came before it."""
    model, batch = loaded(tiny), batch_of(sampled(tiny, SAMPLING))
    learner = learner_of(model, variant(kl_coef=0.0, passes=2, minibatches=2), optimizer=Turns(model))
    credit = credit_of(batch, torch.ones(11))
    learner.learn(batch, credit, learner.evaluate(batch), step=3)
    assert learner.optimizer.turns == [8, 9, 10, 11]


@pytest.mark.parametrize("changes", [{}, {"passes": 2, "correction": "truncate"}], ids=str)
def test_a_diverged_token_is_one_beside_its_sampler(tiny: Path, changes: dict[str, Any]) -> None:
    """The learner's own log-probs are the old ones, but what the sampler drew with still decides DPPO's mask."""
    model, batch = loaded(tiny), batch_of(sampled(tiny, SAMPLING))
    batch.old_logprobs_NT.sub_(3.0 * batch.mask_NT)
    learner = learner_of(model, variant("dppo", minibatches=1, **changes))
    credit = credit_of(batch, torch.ones(11))
    result = learner.learn(batch, credit, learner.evaluate(batch), step=2)
    expected = [
        [math.exp(new) * (1 - math.exp(-3.0)) > 0.15 for new in trace.logprobs or ()] for _, trace in result.tokens
    ]
    clipped = [row[mask].tolist() for row, mask in zip(result.unused["clipped"], batch.mask_NT, strict=True)]
    assert clipped == expected
    assert 0 < sum(map(sum, expected)) < int(batch.mask_NT.sum())


def test_a_replayed_value_differs_from_the_last_bit_on() -> None:
    assert _difference("loss", [1.0], [1.0 + 2**-52]).differing == 1
    assert _difference("loss", [1.0, NAN, None], [1.0, None, math.inf]).differing == 0
