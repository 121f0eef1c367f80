"""Lines of the learner that no other test holds alone: which tokens count, and in which denominators."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grouprl.algorithms.advantages import Credit
from grouprl.learner import PolicyEvaluation, make_batch, trace_updates
from grouprl.learner.batch import UpdateInputs
from grouprl.tools.proof.replay import _difference
from grouprl.types import Batch, Completion, Group, Problem, Sampling, StopReason
from learner_setting import GradientKeeper, batch_of, credit_of, critic_of, learner_of, loaded
from variants import variant

NAN = math.nan


def completion(index: int, length: int, stop: StopReason) -> Completion:
    return Completion(index, (5,) * length, (-0.5,) * length, (-0.5,) * length, "", stop, 0)


def three_ends() -> list[Group]:
    """Completions of 3, 2 and 3 tokens: one ends, one is truncated, one meets a stop string."""
    reasons = (StopReason.END, StopReason.LENGTH, StopReason.STOP_STRING)
    members = (completion(at, n, stop) for at, (n, stop) in enumerate(zip((3, 2, 3), reasons, strict=True)))
    return [Group(Problem("one", "one"), (7,), tuple(members))]


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


def critic_gradients(folder: Path, groups: list[Group], count: int, passes: int = 1) -> list[Tensor]:
    """Of the head, in every update; a group's returns follow from its prompt."""
    model, batch = loaded(folder), batch_of(groups)
    critic = critic_of(model, shared=False)
    keeper = GradientKeeper(critic)
    algorithm = variant("ppo", kl_coef=0.0, minibatches=count, passes=passes)
    learner = learner_of(model, algorithm, critic=critic, critic_optimizer=keeper)
    value_N = torch.tensor([1.0 + len(batch.prompts[group]) / 8 for group in batch.group_of_N])
    credit = Credit(1.0 * batch.mask_NT, value_N[:, None] * batch.mask_NT, batch.mask_NT)
    learner.learn(batch, credit, learner.evaluate(batch), step=2)
    return [gradient["head.weight"] for gradient in keeper.gradients]


def test_the_value_loss_is_a_mean_over_the_tokens_of_the_minibatch(tiny: Path, groups: list[Group]) -> None:
    """Three groups in three updates: the critic's gradient in each is the one of a batch of that group alone."""
    split = critic_gradients(tiny, groups, 3)
    alone = [critic_gradients(tiny, [group], 1)[0] for group in groups]
    ours, theirs = (sorted(float(one.norm()) for one in gradients) for gradients in (split, alone))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_minibatches_have_another_order_in_every_pass_with_a_critic_too(tiny: Path, groups: list[Group]) -> None:
    """Nothing moves, so an update has the gradient of its group: the three groups, in several orders."""
    norms = [round(float(one.norm()), 4) for one in critic_gradients(tiny, groups, 3, passes=4)]
    orders = [tuple(norms[at : at + 3]) for at in range(0, 12, 3)]
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(orders[0]))}
    assert len(set(orders)) > 1


def test_a_correction_alone_has_no_entropy_threshold(tiny: Path, batch: Batch) -> None:
    learner = learner_of(loaded(tiny), variant("grpo", kl_coef=0.0, correction="truncate"))
    result = learner.learn(batch, credit_of(batch), learner.evaluate(batch), step=2)
    assert "entropy_threshold" not in result.metrics
    assert "low_entropy" not in trace_updates(learner.algorithm, result).unused


@pytest.mark.parametrize(("advantages", "has_signal"), [([0.0, 1.0, 0.0], False), ([1.0, 1.0, 0.0], True)])
def test_a_batch_whose_signal_is_truncated_has_none(advantages: list[float], has_signal: bool) -> None:
    """Row 1 is truncated."""
    batch = make_batch(three_ends(), Sampling(max_tokens=4), mask_overlong=True)
    credit = Credit(torch.tensor(advantages)[:, None] * batch.mask_NT)
    assert UpdateInputs.of(batch, credit, PolicyEvaluation(), variant("grpo"))[0].has_signal == has_signal


def test_updates_are_numbered_through_the_run(tiny: Path, batch: Batch) -> None:
    """Step 3 of a run with 2 passes of 2 updates: 8 updates came before it."""
    learner = learner_of(loaded(tiny), variant(kl_coef=0.0, passes=2, minibatches=2))
    learner.learn(batch, credit_of(batch, torch.ones(11)), learner.evaluate(batch), step=3)
    assert learner.optimizer.turns == [8, 9, 10, 11]


@pytest.mark.parametrize("changes", [{}, {"passes": 2, "correction": "truncate"}], ids=str)
def test_a_diverged_token_is_one_beside_its_sampler(tiny: Path, batch: Batch, changes: dict[str, Any]) -> None:
    """The learner's own log-probs are the old ones, but what the sampler drew with still decides DPPO's mask."""
    batch.old_logprobs_NT.sub_(3.0 * batch.mask_NT)
    learner = learner_of(loaded(tiny), variant("dppo", minibatches=1, **changes))
    result = learner.learn(batch, credit_of(batch, torch.ones(11)), learner.evaluate(batch), step=2)
    traced = trace_updates(learner.algorithm, result)
    expected = [
        [math.exp(new) * (1 - math.exp(-3.0)) > 0.15 for new in trace.logprobs or ()] for _, trace in traced.tokens
    ]
    clipped = [row[mask].tolist() for row, mask in zip(traced.unused["clipped"], batch.mask_NT, strict=True)]
    assert clipped == expected
    assert 0 < sum(map(sum, expected)) < int(batch.mask_NT.sum())


def test_a_replayed_value_differs_from_the_last_bit_on() -> None:
    assert _difference("loss", [1.0], [1.0 + 2**-52]).differing == 1
    assert _difference("loss", [1.0, NAN, None], [1.0, None, math.inf]).differing == 0
