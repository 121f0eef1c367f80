"""A step without signal makes no update: weights, decay, moments and the count of updates stay, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grouprl import Algorithm
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.values import SharedCritic
from grouprl.config.run import LearnerConfig
from grouprl.learner import Learner, Optimizer, PolicyEvaluation, assign_credit, make_batch
from grouprl.learner.batch import UpdateInputs
from grouprl.learner.terms import PolicyTerm
from grouprl.models.load import frozen_copy
from grouprl.terms.critic import Critic
from grouprl.types import Group, RewardOutcome
from learner_setting import SAMPLING, learner_of, loaded
from variants import variant

CONFIG = LearnerConfig(learning_rate=1e-3, weight_decay=0.1)


def real_learner(tiny: Path, algorithm: Algorithm) -> Learner:
    """With AdamW, weight decay, and a reference that is the policy."""
    model = loaded(tiny)
    critic = Critic(model, shared=isinstance(algorithm.critic, SharedCritic)) if algorithm.critic else None
    return learner_of(
        model,
        algorithm,
        optimizer=Optimizer(model, CONFIG),
        reference=frozen_copy(model) if algorithm.kl else None,
        critic=critic,
        critic_optimizer=Optimizer(critic, CONFIG) if critic else None,
        micro_batch_tokens=60,
    )


def learn(learner: Learner, groups: list[Group], rewards: list[float], step: int) -> dict[str, float]:
    batch = make_batch(groups, SAMPLING)
    before = learner.evaluate(batch)
    outcomes = [RewardOutcome(value, {"right": value}) for value in rewards]
    credit = assign_credit(outcomes, {"right": 1.0}, batch, before, learner.algorithm, kl_coef=learner.kl_coef)
    return learner.learn(batch, credit, before, step=step).metrics


def kept(learner: Learner) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    optimizer = learner.optimizer
    return copy.deepcopy(learner.policy.state_dict()), optimizer.state(), optimizer.updates


def assert_unmoved(learner: Learner, then: tuple[dict[str, Tensor], dict[str, Tensor], int]) -> None:
    weights, moments, updates = kept(learner)
    assert [name for name in then[0] if not weights[name].equal(then[0][name])] == []
    assert moments.keys() == then[1].keys()
    assert [name for name in moments if not moments[name].equal(then[1][name])] == []
    assert updates == then[2]


# reinforce subtracts a constant: equal rewards have a signal there.
COMPARING = [*(name for name in NAMED if name != "reinforce")]
FIRST = {name: NAMED[name] for name in COMPARING} | {
    "rloo in four minibatches": variant("rloo", minibatches=4),
    "grpo in three minibatches, two passes": variant(minibatches=3, passes=2),
    "reinforce_pp with k3": variant("reinforce_pp", kl_estimator="k3"),
}


@pytest.mark.parametrize("name", FIRST)
def test_equal_rewards_at_the_reference_move_nothing(name: str, tiny: Path, groups: list[Group]) -> None:
    learner = real_learner(tiny, FIRST[name])
    then = kept(learner)
    metrics = learn(learner, groups, [1.0] * 11, step=1)
    assert_unmoved(learner, then)
    assert metrics["grad_norm"] == 0.0


@pytest.mark.parametrize("name", ["dapo", "dr_grpo", "gmpo"])
def test_momentum_and_decay_wait_for_a_signal(name: str, tiny: Path, groups: list[Group]) -> None:
    learner = real_learner(tiny, NAMED[name])
    learn(learner, groups, [1.0, 0.0, 0.0] * 3 + [1.0, 0.0], step=1)
    then = kept(learner)
    assert then[2] > 0
    learn(learner, groups, [0.5] * 11, step=2)
    assert_unmoved(learner, then)


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_pp", "openrlhf"])
def test_away_from_the_reference_the_kl_alone_is_a_gradient(name: str, tiny: Path, groups: list[Group]) -> None:
    learner = real_learner(tiny, NAMED[name])
    with torch.no_grad():
        for weight in learner.reference.parameters():
            weight.mul_(1.001)
    then = kept(learner)
    metrics = learn(learner, groups, [1.0] * 11, step=1)
    assert metrics["grad_norm"] > 0
    assert learner.optimizer.updates > then[2]


@pytest.mark.parametrize(
    ("drift_coef", "rewards", "moved"),
    [
        (0.1, [1.0, 0.0, 0.5] * 2 + [0.5] * 5, [True] * 11),
        (0.0, [1.0, 0.0, 0.5] * 2 + [0.5] * 5, [True, True, False] * 2 + [False] * 5),
        (0.1, [0.5] * 11, [False] * 11),
    ],
)
def test_a_drift_moves_every_completion_where_one_has_an_advantage(
    drift_coef: float, rewards: list[float], moved: list[bool], tiny: Path, groups: list[Group]
) -> None:
    algorithm, batch = variant("prime_rl", drift_coef=drift_coef), make_batch(groups, SAMPLING)
    outcomes = [RewardOutcome(value, {"right": value}) for value in rewards]
    credit = assign_credit(outcomes, {"right": 1.0}, batch, PolicyEvaluation(), algorithm, kl_coef=0.0)
    inputs, _ = UpdateInputs.of(batch, credit, PolicyEvaluation(), algorithm)
    assert PolicyTerm(algorithm).moves(inputs, range(11), batch.mask_NT.float()).tolist() == moved


def test_a_gap_to_the_reference_above_the_rounding_counts(tiny: Path, groups: list[Group]) -> None:
    learner, batch = real_learner(tiny, NAMED["rloo"]), make_batch(groups, SAMPLING)
    bound = 1e-4
    assert learner.evaluate(batch).at_reference
    for gap, expected in ((0.5 * bound, True), (4 * bound, False), (-4 * bound, False)):
        old_NT = batch.old_logprobs_NT.clone()
        old_NT[3, 0] += gap
        assert learner.evaluate(replace(batch, old_logprobs_NT=old_NT)).at_reference is expected


def test_without_a_reference_a_policy_is_not_at_it(tiny: Path, groups: list[Group]) -> None:
    assert not real_learner(tiny, NAMED["dapo"]).evaluate(make_batch(groups, SAMPLING)).at_reference
    assert not PolicyEvaluation().at_reference
