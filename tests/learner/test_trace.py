"""What is recorded of each token: the learner's log-probs, entropies, the reference's, and those after the update."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.learner import Learner, Optimizer, make_batch
from grouprl.models.load import frozen_copy, load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Batch, Problem, Sampling, TokenTrace
from oracles import own_logits
from variants import variant

CPU = torch.device("cpu")
SAMPLING = Sampling(max_tokens=10, temperature=0.8)
# The first group has no signal.
ADVANTAGES = torch.tensor([0.0, 0.0, 0.0, 1.5, -0.5, -1.0])


@pytest.fixture
def model(tiny: Path) -> PreTrainedModel:
    return load_model(str(tiny), device=CPU)


@pytest.fixture
def batch(tiny: Path, model: PreTrainedModel) -> Batch:
    tokenizer = load_tokenizer(str(tiny))
    model.generation_config.eos_token_id = list(range(20, 44))
    requests = [Request(Problem(text, text), tuple(tokenizer(text)["input_ids"]), 3) for text in ("4", "John has 15")]
    return make_batch(NativeEngine(model, tokenizer, seed=1, max_rows=8).generate(requests, SAMPLING), SAMPLING)


def traced(model: PreTrainedModel, batch: Batch, algorithm: Algorithm, step: int = 2) -> list[TokenTrace]:
    """The reference is a model of its own: the policy with some noise."""
    reference = None
    if algorithm.kl_coef:
        reference = frozen_copy(model)
        with torch.no_grad():
            for weight in reference.parameters():
                weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    learner = Learner(
        policy=model,
        reference=reference,
        optimizer=Optimizer(model, LearnerConfig(learning_rate=0.01)),
        algorithm=algorithm,
        device=CPU,
        dtype="float32",
        micro_batch_tokens=30,
    )
    credit = Credit(ADVANTAGES[:, None] * batch.mask_NT)
    seen = learner.evaluate(batch)
    rows = [trace for _, trace in learner.learn(batch, credit, seen, step=step).tokens]
    if reference is not None:
        for row, trace in enumerate(rows):
            assert trace.reference == pytest.approx(logprobs(reference, batch, row), abs=1e-5)
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
    before = [distributions(model, batch, row) for row in range(6)]
    expected = [logprobs(model, batch, row) for row in range(6)]
    for row, trace in enumerate(traced(model, batch, variant(kl_coef=0.1))):
        assert trace.logprobs == pytest.approx(expected[row], abs=1e-5)
        entropies = [-sum(math.exp(p) * p for p in one.tolist()) for one in before[row]]
        assert trace.entropies == pytest.approx(entropies, abs=1e-4)
        assert trace.updated is None


def test_what_is_not_read_is_not_made_up(model: PreTrainedModel, batch: Batch):
    """Without a KL, the learner does not read a group without signal."""
    rows = traced(model, batch, variant(kl_coef=0.0))
    assert rows[:3] == [TokenTrace()] * 3
    assert all(trace.logprobs and trace.entropies and trace.reference is None for trace in rows[3:])


def test_the_first_group_with_a_signal_is_looked_at_again(model: PreTrainedModel, batch: Batch):
    rows = traced(model, batch, variant(kl_coef=0.1), step=11)
    assert [trace.updated is None for trace in rows] == [True] * 3 + [False] * 3
    for row in (3, 4, 5):
        assert rows[row].updated == pytest.approx(logprobs(model, batch, row), abs=1e-5)
        # An advantage above 0 made the completion more probable, one below 0 less.
        assert (sum(rows[row].updated) > sum(rows[row].logprobs)) == (ADVANTAGES[row] > 0)


def test_of_several_updates_the_last_pass_counts(model: PreTrainedModel, batch: Batch):
    twice = traced(model, batch, variant(variant(kl_coef=0.0), passes=2))
    sampled = [row[mask].tolist() for row, mask in zip(batch.old_logprobs_NT, batch.mask_NT, strict=True)]
    assert all(
        max(abs(a - b) for a, b in zip(twice[row].logprobs, sampled[row], strict=True)) > 1e-3 for row in (3, 4, 5)
    )


def test_a_critic_that_warms_up_is_not_looked_at(model: PreTrainedModel, batch: Batch):
    rows = traced(model, batch, variant("ppo", critic_warmup=11, kl_coef=0), step=11)
    assert rows == [TokenTrace()] * 6
