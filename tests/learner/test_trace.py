"""What is recorded of each token: the learner's log-probs, entropies, the reference's, and those after the update."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.learner import Optimizer, make_batch, trace_updates
from grouprl.types import Batch, Sampling, TokenTrace
from learner_setting import ADVANTAGES, credit_of, learner_of, loaded, sampled
from oracles import own_logits
from variants import variant

SAMPLING = Sampling(max_tokens=10, temperature=0.8)
FIRST, SECOND = range(3), range(3, 6)  # rows; the first group has no signal
SIGNAL_N = ADVANTAGES[[3, 4, 5, 0, 1, 2, *range(6, 11)]]


@pytest.fixture
def model(tiny: Path) -> PreTrainedModel:
    return loaded(tiny)


@pytest.fixture(scope="module")
def batch(tiny: Path) -> Batch:
    return make_batch(sampled(tiny, SAMPLING), SAMPLING)


def traced(model: PreTrainedModel, batch: Batch, algorithm: Algorithm, step: int = 2) -> list[TokenTrace]:
    optimizer = Optimizer(model, LearnerConfig(learning_rate=0.01))
    learner = learner_of(model, algorithm, optimizer=optimizer, micro_batch_tokens=30)
    result = learner.learn(batch, credit_of(batch, SIGNAL_N), learner.evaluate(batch), step=step)
    rows = [trace for _, trace in trace_updates(algorithm, result).tokens]
    if learner.reference is not None:
        for row, trace in enumerate(rows):
            assert trace.reference == pytest.approx(logprobs(learner.reference, batch, row), abs=2e-5)
    return rows


def distributions(model: PreTrainedModel, batch: Batch, row: int) -> Tensor:
    """[tokens, V] log-probs from a forward pass of prompt and completion in transformers' own way."""
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    own = batch.token_ids_NT[row][batch.mask_NT[row]].tolist()
    with torch.no_grad():
        logits = own_logits(plain, batch.prompts[batch.group_of_N[row]], own)
    return torch.log_softmax(logits / SAMPLING.temperature, -1)


def logprobs(model: PreTrainedModel, batch: Batch, row: int) -> list[float]:
    own = batch.token_ids_NT[row][batch.mask_NT[row]]
    return distributions(model, batch, row).gather(1, own[:, None])[:, 0].tolist()


def test_of_the_policy_before_its_update(model: PreTrainedModel, batch: Batch):
    expected = [(logprobs(model, batch, row), distributions(model, batch, row).tolist()) for row in range(11)]
    traces = traced(model, batch, variant(kl_coef=0.1))
    for trace, (own, before) in zip(traces, expected, strict=True):
        assert trace.logprobs == pytest.approx(own, abs=1e-5)
        assert trace.entropies == pytest.approx([-sum(math.exp(p) * p for p in one) for one in before], abs=1e-4)
        assert trace.updated is None


def test_what_is_not_read_is_not_made_up(model: PreTrainedModel, batch: Batch):
    """Without a KL, the learner does not read a group without signal."""
    rows = traced(model, batch, variant(kl_coef=0.0))
    assert [rows[row] for row in FIRST] == [TokenTrace()] * 3
    assert all(rows[row].logprobs and rows[row].entropies and rows[row].reference is None for row in SECOND)


def test_the_first_group_with_a_signal_is_looked_at_again(model: PreTrainedModel, batch: Batch):
    rows = traced(model, batch, variant(kl_coef=0.1), step=11)
    assert [row for row, trace in enumerate(rows) if trace.updated is not None] == [*SECOND]
    for row in SECOND:
        assert rows[row].updated == pytest.approx(logprobs(model, batch, row), abs=1e-5)
        # An advantage above 0 made the completion more probable, one below 0 less.
        assert (sum(rows[row].updated) > sum(rows[row].logprobs)) == (SIGNAL_N[row] > 0)


def test_of_several_updates_the_last_pass_counts(model: PreTrainedModel, batch: Batch):
    twice = traced(model, batch, variant(kl_coef=0.0, passes=2))
    for row in SECOND:
        drawn = batch.old_logprobs_NT[row][batch.mask_NT[row]].tolist()
        assert max(abs(a - b) for a, b in zip(twice[row].logprobs, drawn, strict=True)) > 1e-3


def test_a_critic_that_warms_up_is_not_looked_at(model: PreTrainedModel, batch: Batch):
    assert traced(model, batch, variant("ppo", critic_warmup=11, kl_coef=0), step=11) == [TokenTrace()] * 11
