"""Critic, entropy, corrections, minibatches and the reference that moves: against autograd on padded rows."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl import Algorithm
from grouprl.algorithms import token_weights
from grouprl.algorithms.advantages import Credit
from grouprl.config.run import LearnerConfig
from grouprl.learner import Learner, Optimizer, make_batch
from grouprl.models.load import fingerprint, frozen_copy, load_model
from grouprl.terms.critic import Critic
from grouprl.types import Batch, Group, Sampling
from learner_setting import (
    ADVANTAGES,
    CPU,
    EXAMPLES,
    GradientKeeper,
    credit_of,
    critic_of,
    gap,
    learn,
    learner_of,
    loaded,
    sampled,
)
from oracles import own_logits, own_model
from variants import variant

PLAIN = Sampling(max_tokens=12)
POLICY_ONLY = {"kl_coef": 0.0, "surrogate": "plain"}
STALE, ELSEWHERE = {"is_stale": True}, {"sampled_in_process": False}


@pytest.fixture(scope="module")
def groups(tiny: Path) -> list[Group]:
    return sampled(tiny, PLAIN)


@pytest.fixture
def model(tiny: Path) -> PreTrainedModel:
    return load_model(str(tiny), device=CPU)


@pytest.fixture(scope="module")
def groups_after_examples(tiny: Path) -> list[Group]:
    return sampled(tiny, PLAIN, EXAMPLES)


@pytest.fixture
def batch(request: pytest.FixtureRequest) -> Batch:
    return make_batch(request.getfixturevalue(getattr(request, "param", "groups")), PLAIN)


with_and_without_examples = pytest.mark.parametrize("batch", ["groups", "groups_after_examples"], indirect=True)


def own_logprobs(own: PreTrainedModel, batch: Batch) -> list[Tensor]:
    """Of each row, [T, V] log-probs of every token of the vocabulary, by the library's own forward."""
    return [
        own_logits(own, batch.prompts[group], ids[mask].tolist()).log_softmax(-1)
        for group, ids, mask in zip(batch.group_of_N, batch.token_ids_NT, batch.mask_NT, strict=True)
    ]


def chosen(logprobs_TV: Tensor, batch: Batch, row: int) -> Tensor:
    return logprobs_TV.gather(1, batch.token_ids_NT[row, : len(logprobs_TV), None])[:, 0]


def own_gradient(own: PreTrainedModel) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in own.named_parameters()}


# Entropy


def test_the_entropy_bonus_is_the_weighted_entropy_of_all_rows(tiny: Path, model: PreTrainedModel, batch: Batch):
    learner = learner_of(model, variant(**POLICY_ONLY, entropy_coef=0.3), micro_batch_tokens=45)
    figures = learn(learner, batch)
    own = own_model(tiny)
    weights_NT, loss, entropies = token_weights(batch.mask_NT), 0.0, []
    for row, logprobs_TV in enumerate(own_logprobs(own, batch)):
        weights_T = weights_NT[row, : len(logprobs_TV)]
        entropies_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
        ratio_T = (chosen(logprobs_TV, batch, row) - batch.old_logprobs_NT[row, : len(logprobs_TV)]).exp()
        loss = loss - (weights_T * (ratio_T * ADVANTAGES[row] + 0.3 * entropies_T)).sum()
        entropies.append(entropies_T)
    loss.backward()
    assert gap(learner.optimizer.gradient, own_gradient(own)) < 2e-5
    assert figures["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    moved = torch.cat([one for one, advantage in zip(entropies, ADVANTAGES, strict=True) if advantage != 0])
    assert figures["entropy"] == pytest.approx(float(moved.detach().mean()), abs=1e-4)


def test_the_entropy_bonus_is_steered(model: PreTrainedModel, batch: Batch):
    """Entropy is above 1 nat and below 99: the coefficient of a run with the target between them moves one way."""
    learner = learner_of(model, variant(**POLICY_ONLY, entropy_coef=0.02, entropy_target=99.0, entropy_step=0.01))
    applied = [learn(learner, batch)["entropy_coef"] for _ in range(3)]
    assert applied == pytest.approx([0.02, 0.03, 0.04])
    learner.algorithm = variant(**POLICY_ONLY, entropy_coef=0.02, entropy_target=1.0, entropy_step=0.03)
    figures = [learn(learner, batch) for _ in range(3)]
    assert [one["entropy_coef"] for one in figures] == pytest.approx([0.05, 0, 0])
    assert learner.entropy_coefs == (0.0, 0.0)
    assert min(one["entropy"] for one in figures) > 1


def test_a_paused_entropy_bonus_has_no_gradient(model: PreTrainedModel, batch: Batch):
    paused, plain = (
        learner_of(model, variant(**POLICY_ONLY, **options))
        for options in ({"entropy_coef": 0.3, "entropy_target": 1.0}, {})
    )
    paused.entropy_coefs = (0.3, 0.0)
    for one in (paused, plain):
        learn(one, batch)
    assert gap(paused.optimizer.gradient, plain.optimizer.gradient) == 0


@pytest.mark.parametrize("budget", [30, 10**6])
def test_a_bonus_is_steered_by_one_population_while_it_pauses_and_while_it_acts(
    tiny: Path, model: PreTrainedModel, batch: Batch, budget: int
):
    """Acting reads all three groups, pausing the two with signal; both measure the tokens that an advantage moves."""
    entropies = [-(one.exp() * one).sum(-1).detach() for one in own_logprobs(own_model(tiny).double(), batch)]
    moved = [one for one, advantage in zip(entropies, ADVANTAGES, strict=True) if advantage != 0]
    expected, everyone = float(torch.cat(moved).mean()), float(torch.cat(entropies).mean())
    for bonus in (0.0, 0.3):
        algorithm = variant(**POLICY_ONLY, entropy_coef=0.3, entropy_target=1.0)
        learner = learner_of(model, algorithm, micro_batch_tokens=budget)
        learner.entropy_coefs = (0.3, bonus)
        assert learn(learner, batch)["entropy"] == pytest.approx(expected, abs=1e-5)
    assert abs(expected - everyone) > 1e-4


def test_only_tokens_of_high_entropy_move_the_policy(tiny: Path, model: PreTrainedModel, batch: Batch):
    learner = learner_of(model, variant(**POLICY_ONLY, entropy_share=0.3), micro_batch_tokens=45)
    figures = learn(learner, batch)
    own = own_model(tiny)
    rows = own_logprobs(own, batch)
    entropies = torch.cat([-(row.exp() * row).sum(-1) for row in rows]).detach()
    threshold = entropies.sort(descending=True).values[int(0.3 * (len(entropies) - 1))] - 1e-5
    weights_NT, loss = token_weights(batch.mask_NT), 0.0
    for row, (logprobs_TV, entropies_T) in enumerate(
        zip(rows, entropies.split([len(row) for row in rows]), strict=True)
    ):
        kept_T = weights_NT[row, : len(logprobs_TV)] * (entropies_T >= threshold)
        loss = loss - (kept_T * chosen(logprobs_TV, batch, row) * ADVANTAGES[row]).sum()
    loss.backward()
    assert gap(learner.optimizer.gradient, own_gradient(own)) < 2e-5
    assert figures["entropy_threshold"] == pytest.approx(float(threshold), abs=1e-4)


# A sampler that differs


@pytest.mark.parametrize(
    ("kind", "passes", "sampler", "factor"),
    [
        *(("truncate", 1, {}, 1.5), ("mask", 1, {}, 0.0), ("none", 1, {}, 1.0), ("none", 2, {}, 3.0)),
        *(("truncate", 1, STALE, 1.5), ("mask", 1, STALE, 0.0), ("none", 1, STALE, 3.0), ("none", 2, STALE, 3.0)),
        *(("none", 2, ELSEWHERE, 1.0), ("none", 2, STALE | ELSEWHERE, 3.0)),
    ],
)
def test_the_correction_weighs_the_advantage(
    model: PreTrainedModel, batch: Batch, kind: str, passes: int, sampler: dict[str, bool], factor: float
):
    # The sampler claims a third of the probability for every token of row 0: 3 times too rare, beyond the cap of 1.5.
    old = batch.old_logprobs_NT.clone()
    old[0] -= torch.log(torch.tensor(3.0)) * batch.mask_NT[0]
    algorithm = variant(**POLICY_ONLY, passes=passes, correction=kind, correction_cap=2.0 if kind == "none" else 1.5)
    learner = learner_of(model, algorithm)
    learn(learner, replace(batch, old_logprobs_NT=old, sampling=replace(PLAIN, **sampler)))
    scaled = ADVANTAGES.clone()
    # Uncorrected, the ratio of the loss itself is 3; with one update of a batch that this policy sampled, or with the
    # log-probs of another program, it is to the learner itself, and 1. Of an older policy it is never left out.
    scaled[0] *= factor
    expected = learner_of(model, variant(**POLICY_ONLY))
    learn(expected, batch, scaled)
    assert gap(learner.optimizer.gradient, expected.optimizer.gradient) < 1e-4


def test_an_older_sampler_at_the_reference_does_not_hide_that_the_policy_left_it(model: PreTrainedModel, batch: Batch):
    learner = learner_of(model, variant(), reference=frozen_copy(model))
    assert learner.evaluate(batch).at_reference
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.1)
    stale = replace(batch, sampling=replace(PLAIN, **STALE))
    assert not learner.evaluate(stale).at_reference


def test_the_gap_to_the_sampler_is_shown_with_a_correction_too(model: PreTrainedModel, batch: Batch):
    old = batch.old_logprobs_NT.clone()
    old[6, 0] += 0.25
    figures = learn(
        learner_of(model, variant(**POLICY_ONLY, correction="truncate")), replace(batch, old_logprobs_NT=old)
    )
    assert figures["sampler_learner_gap"] == pytest.approx(0.25, abs=1e-5)
    assert figures["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert figures["correction_max"] == pytest.approx(1, abs=1e-4)


# Minibatches


SIGNAL = ADVANTAGES + 0.1  # in every group


def test_minibatches_are_whole_groups_each_with_its_own_denominator(model: PreTrainedModel, batch: Batch):
    """Groups of 3, 3 and 5 in three updates: each is the gradient of its group alone, divided by its own rows."""
    keeper = GradientKeeper(model)
    learn(learner_of(model, variant(**POLICY_ONLY, minibatches=3), optimizer=keeper), batch, SIGNAL)
    norms = sorted(sum(float(value.square().sum()) for value in gradient.values()) for gradient in keeper.gradients)
    alone = []
    for group in range(3):
        rows = torch.tensor(batch.group_of_N) == group
        one = learner_of(model, variant(**POLICY_ONLY))
        learn(one, batch, torch.where(rows, SIGNAL, 0.0))
        factor = 11 / int(rows.sum())  # the batch divides by 11 rows, the minibatch by its own
        alone.append(sum(float((factor * value).square().sum()) for value in one.optimizer.gradient.values()))
    assert norms == pytest.approx(sorted(alone), rel=1e-3, abs=1e-12)
    assert len(keeper.gradients) == 3


@pytest.mark.parametrize(
    ("minibatches", "passes", "advantages", "updates"),
    [(9, 2, SIGNAL, 6), (3, 1, ADVANTAGES, 2)],
    ids=["at most one for each group", "none for a group without signal"],
)
def test_minibatches_that_make_an_update(
    model: PreTrainedModel, batch: Batch, minibatches: int, passes: int, advantages: Tensor, updates: int
):
    learner = learner_of(model, variant(**POLICY_ONLY, minibatches=minibatches, passes=passes))
    learn(learner, batch, advantages)
    assert learner.optimizer.updates == updates


# The critic


def own_values(own: PreTrainedModel, critic: Critic, batch: Batch) -> list[Tensor]:
    """[T] values of each row from the library's own hidden states, one completion at a time."""
    values = []
    for group, ids, mask in zip(batch.group_of_N, batch.token_ids_NT, batch.mask_NT, strict=True):
        row = torch.tensor([[*batch.prompts[group], *ids[mask].tolist()]])
        hidden = own.get_decoder()(row, use_cache=False).last_hidden_state[0]
        values.append(critic.head(hidden)[len(batch.prompts[group]) - 1 : -1, 0])
    return values


RETURNS = torch.sin(torch.arange(11 * 12.0)).view(11, 12)
PPO = variant("ppo", kl_coef=0.0, minibatches=1, value_clip=None)
ALONE = variant(PPO, baseline="batch_mean", critic="none", value_clip=0.2, lam=0.95)


def with_critic(model: PreTrainedModel, algorithm: Algorithm, critic: Critic, **changes: object) -> Learner:
    return learner_of(
        model, algorithm, critic=critic, critic_optimizer=GradientKeeper(critic), micro_batch_tokens=45, **changes
    )


def learn_values(learner: Learner, batch: Batch, advantages: Tensor = ADVANTAGES) -> dict[str, float]:
    counted = batch.mask_NT.clone()
    counted[7] = False  # an invalid reward
    credit = Credit(credit_of(batch, advantages).advantages_NT, RETURNS[:, : batch.mask_NT.shape[1]], counted)
    return learner.learn(batch, credit, learner.evaluate(batch), step=2).metrics


def value_cost(values: Sequence[Tensor], batch: Batch) -> Tensor:
    """Half the mean squared error over the tokens of all rows but the invalid one."""
    kept = [row for row in range(11) if row != 7]
    errors = [values[row] - RETURNS[row, : len(values[row])] for row in kept]
    return torch.cat(errors).square().mean() / 2


@with_and_without_examples
def test_the_critic_learns_its_returns_on_a_copy_of_the_policy(tiny: Path, model: PreTrainedModel, batch: Batch):
    critic = critic_of(model, shared=False)
    learner = with_critic(model, PPO, critic)
    figures = learn_values(learner, batch)
    twin, own = critic_of(model, shared=False), own_model(tiny)
    cost = value_cost(own_values(own, twin, batch), batch)
    cost.backward()
    got = learner.critic.optimizer.gradient
    expected = {f"trunk.{name}": weight.grad for name, weight in own.get_decoder().named_parameters()}
    expected |= {"head.weight": twin.head.weight.grad, "head.bias": twin.head.bias.grad}
    assert gap(got, expected) < 2e-5
    assert figures["value_loss"] == pytest.approx(float(cost.detach()), abs=1e-5)
    # and the policy moves as it would without a critic
    alone = learner_of(model, ALONE)
    learn(alone, batch)
    assert gap(learner.optimizer.gradient, alone.optimizer.gradient) < 1e-5


@with_and_without_examples
def test_a_shared_trunk_takes_both_gradients(tiny: Path, model: PreTrainedModel, batch: Batch):
    shared = variant(PPO, critic="shared", value_coef=0.7)
    critic = critic_of(model, shared=True)
    learner = with_critic(model, shared, critic)
    learn_values(learner, batch)
    alone = learner_of(model, ALONE)
    learn(alone, batch)
    twin, own = critic_of(model, shared=True), own_model(tiny)
    (0.7 * value_cost(own_values(own, twin, batch), batch)).backward()
    expected = {
        name: alone.optimizer.gradient[name] + (0.0 if weight.grad is None else weight.grad)
        for name, weight in own.named_parameters()
    }
    assert gap(learner.optimizer.gradient, expected) < 2e-5
    head = {"head.weight": twin.head.weight.grad, "head.bias": twin.head.bias.grad}
    assert gap(learner.critic.optimizer.gradient, head) < 2e-5


@with_and_without_examples
def test_the_values_before_the_update_are_those_of_padded_rows(tiny: Path, model: PreTrainedModel, batch: Batch):
    for shared in (True, False):
        critic = critic_of(model, shared=shared)
        seen = with_critic(model, variant(PPO, critic="shared" if shared else "copy"), critic).evaluate(batch)
        for row, values_T in enumerate(own_values(own_model(tiny), critic, batch)):
            torch.testing.assert_close(seen.values_NT[row, : len(values_T)], values_T.detach(), atol=1e-4, rtol=0)


def test_while_the_critic_warms_up_the_policy_stays(model: PreTrainedModel, batch: Batch):
    critic, before = critic_of(model, shared=False), fingerprint(model)
    optimizer = Optimizer(model, LearnerConfig(learning_rate=0.1))
    learner = with_critic(model, variant(PPO, critic_warmup=2), critic, optimizer=optimizer)
    learn_values(learner, batch)
    assert (fingerprint(model), optimizer.updates) == (before, 0)
    assert "head.weight" in learner.critic.optimizer.gradient


def test_a_value_far_from_what_it_was_is_clipped(model: PreTrainedModel, batch: Batch):
    """The critic has moved by 1 since it was asked: only errors beyond the clip are left to learn from."""
    critic = critic_of(model, shared=False)
    learner = with_critic(model, variant(PPO, value_clip=0.2), critic)
    seen = learner.evaluate(batch)
    values_NT = torch.where(batch.mask_NT, seen.values_NT, 0.0)
    returns_NT = torch.where(batch.mask_NT, values_NT + 2.0, 0.0)
    credit = Credit(credit_of(batch).advantages_NT, returns_NT, batch.mask_NT)
    # From 1 below: the value's error is 2, that of the value clipped to 0.8 below is 2.8.
    figures = learner.learn(batch, credit, replace(seen, values_NT=values_NT - 1.0), step=2).metrics
    assert figures["value_loss"] == pytest.approx(2.8**2 / 2, rel=1e-4)
    assert figures["value_clip_fraction"] == 1
    # What the values explain is that of before the update: the returns are 3 above them everywhere.
    assert figures["value_explained_variance"] == pytest.approx(1, abs=1e-5)


def test_a_batch_of_invalid_rewards_moves_nothing(model: PreTrainedModel, batch: Batch):
    """Neither momentum nor weight decay: the first update leaves moments that a second one would follow."""
    for kind in ("shared", "copy"):
        critic = critic_of(model, shared=kind == "shared")
        both = [Optimizer(module, LearnerConfig(learning_rate=0.01, weight_decay=0.1)) for module in (model, critic)]
        learner = learner_of(
            model, variant(PPO, critic=kind), critic=critic, optimizer=both[0], critic_optimizer=both[1]
        )
        learn_values(learner, batch)
        before, head = fingerprint(model), critic.head.weight.clone()
        nothing = Credit(torch.zeros(batch.mask_NT.shape), torch.zeros(batch.mask_NT.shape), batch.mask_NT & False)
        figures = learner.learn(batch, nothing, learner.evaluate(batch), step=2).metrics
        assert (fingerprint(model), [one.updates for one in both]) == (before, [1, 1])
        assert torch.equal(critic.head.weight, head)
        assert (figures["grad_norm"], figures["critic_grad_norm"]) == (0.0, 0.0)


def test_a_new_critic_says_zero(model: PreTrainedModel, batch: Batch):
    seen = with_critic(model, PPO, Critic(model, shared=False)).evaluate(batch)
    assert torch.equal(seen.values_NT, torch.zeros(batch.mask_NT.shape))


# The anchor


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp", "openrlhf"])
def test_a_kl_in_the_reward_is_not_in_the_loss_as_well(model: PreTrainedModel, batch: Batch, name: str):
    algorithm = variant(name, kl_coef=0.5)
    learner, free = learner_of(model, algorithm), learner_of(model, variant(algorithm, kl_coef=0.0), reference=None)
    figures = learn(learner, batch)
    learn(free, batch)
    assert figures["kl"] != 0
    assert gap(learner.optimizer.gradient, free.optimizer.gradient) < 1e-6


def test_the_constant_of_dr_grpo_is_the_limit_and_not_the_longest_completion(model: PreTrainedModel, batch: Batch):
    short, long = (
        learn(learner_of(model, variant(**POLICY_ONLY, aggregate="constant")), replace(batch, sampling=sampling))
        for sampling in (PLAIN, replace(PLAIN, max_tokens=36))
    )
    assert short["loss"] == pytest.approx(3 * long["loss"], rel=1e-5)


def test_the_reference_goes_a_part_of_the_way_to_the_policy(model: PreTrainedModel, batch: Batch):
    """A weight of 1 that the policy has as 3 becomes 1.5 with a share of a quarter, also one that two layers share."""
    reference = frozen_copy(model)
    with torch.no_grad():
        for network, value in ((reference, 1.0), (model, 3.0)):
            for weight in network.parameters():
                weight.fill_(value)
    learner = learner_of(model, variant(kl_coef=0.1, refresh_reference=1, reference_mixup=0.25), reference=reference)
    learner.refresh_reference()
    assert {value for weight in reference.parameters() for value in weight.unique().tolist()} == {1.5}
    assert not any(weight.requires_grad for weight in reference.parameters())
    assert {value for weight in model.parameters() for value in weight.unique().tolist()} == {3.0}


def test_the_kl_coefficient_of_a_step_follows_from_the_kl_before(model: PreTrainedModel, batch: Batch):
    algorithm = variant(kl_coef=0.1, kl_target=1e-9)
    steered = learner_of(model, algorithm)
    first, second = learn(steered, batch), learn(steered, batch)
    assert (first["kl_coef"], second["kl_coef"]) == (0.1, pytest.approx(0.102))
    other = learner_of(model, variant(kl_coef=0.102))
    assert second["loss"] == pytest.approx(learn(other, batch)["loss"], abs=1e-7)


def test_the_kl_of_completions_without_an_advantage_counts_whatever_the_packs(tiny: Path, batch: Batch) -> None:
    advantages_N = torch.zeros(len(batch.mask_NT))
    advantages_N[0] = 1.0
    together, apart = (
        learn(learner_of(loaded(tiny), variant(kl_coef=0.1), micro_batch_tokens=tokens), batch, advantages_N)["kl"]
        for tokens in (10**6, 1)
    )
    assert apart == pytest.approx(together, rel=1e-4)
    assert together > 0
