"""An update on a GPU that the CPU pretends to be, through flex_attention: the numbers of the CPU's own path."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.values import SharedCritic
from grouprl.config.learner import UpdateConfig
from grouprl.forward.recompute import recompute_activations
from grouprl.learner import Learner, Optimizer, assign_credit, trace_updates
from grouprl.learner.trace import BatchUpdates
from grouprl.models.verify import TOLERANCE, gap_to_own
from grouprl.run.machine import networks_mib
from grouprl.terms.critic import Critic
from grouprl.types import Batch, Group, RewardOutcome
from learner_setting import ADVANTAGES, CPU, batch_of, gap, learn, learner_of, loaded
from pretend_gpu import GPU, on_gpu, pretend_gpu
from variants import variant

ALGORITHMS = {
    "KL, correction and entropy": variant("grpo", correction="truncate", entropy_share=0.5, entropy_coef=0.01),
    "critic": variant("ppo", minibatches=1),
    "shared critic": variant("ppo", minibatches=1, critic="shared"),
}


def learned(folder: Path, batch: Batch, algorithm: Algorithm, device: torch.device) -> tuple[Learner, BatchUpdates]:
    """A learner after one update from rewards 0, 1, 0, 1, ...; step 10 looks at one group again."""
    place, config = (lambda one: one) if device == CPU else on_gpu, UpdateConfig(learning_rate=1e-4)
    model, critic = place(loaded(folder)), None
    if algorithm.critic is not None:
        critic = place(Critic(loaded(folder), shared=isinstance(algorithm.critic, SharedCritic)))
    learner = learner_of(
        model,
        algorithm,
        optimizer=Optimizer(model, config),
        critic=critic,
        critic_optimizer=None if critic is None else Optimizer(critic, config),
        device=device,
    )
    outcomes = [RewardOutcome(float(row % 2), {"odd": float(row % 2)}) for row in range(len(batch.mask_NT))]
    before = learner.evaluate(batch)
    credit = assign_credit(outcomes, {"odd": 1.0}, batch, before, algorithm, kl_coef=learner.kl_coef)
    return learner, learner.learn(batch, credit, before, step=10)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_an_update_has_the_cpus_metrics(
    tiny: Path, batch: Batch, algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
):
    _, expected = learned(tiny, batch, algorithm, CPU)
    with pretend_gpu(monkeypatch):
        learner, found = learned(tiny, batch, algorithm, GPU)
        assert {tensor.device for tensor in learner.optimizer.state().values()} == {CPU}
        assert math.isfinite(sum(networks_mib(learner).values()))
    assert found.metrics == pytest.approx(expected.metrics, abs=2e-4, rel=2e-3)
    assert expected.metrics["grad_norm"] > 0
    tokens = [trace_updates(algorithm, result).tokens for result in (found, expected)]
    for (advantages, trace), (usual, other) in zip(*tokens, strict=True):
        assert advantages == pytest.approx(usual, abs=1e-4)
        assert (trace.updated is None) == (other.updated is None)
        assert list(trace.logprobs) == pytest.approx(list(other.logprobs), abs=1e-4)


@pytest.fixture(scope="module")
def few(groups: list[Group]) -> Batch:
    return batch_of(groups[:2])


def gradient(
    folder: Path, batch: Batch, device: torch.device, dtype: str, *, recompute: bool = False
) -> dict[str, Tensor]:
    model = loaded(folder) if device == CPU else on_gpu(loaded(folder))
    if recompute:
        recompute_activations(model)
    learner = learner_of(model, variant("grpo", kl_coef=0.0), device=device, dtype=dtype)
    learn(learner, batch, ADVANTAGES[:6])
    return {name: value.cpu() for name, value in learner.optimizer.gradient.items()}


@pytest.fixture(scope="module")
def exact(tiny: Path, few: Batch) -> dict[str, Tensor]:
    return gradient(tiny, few, CPU, "float32")


def test_the_gradient_is_the_cpus_with_recomputed_layers_too(
    tiny: Path, few: Batch, exact: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
):
    with pretend_gpu(monkeypatch):
        found = gradient(tiny, few, GPU, "float32", recompute=True)
    assert gap(found, exact) < 1e-5


def test_bfloat16_is_off_by_its_rounding(
    tiny: Path, few: Batch, exact: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
):
    """flex_attention refuses queries that rotations made float32 beside values in bfloat16."""
    rounded = gradient(tiny, few, CPU, "bfloat16")
    with pretend_gpu(monkeypatch):
        found = gradient(tiny, few, GPU, "bfloat16")
    assert 1e-3 < gap(found, exact) < 2 * gap(rounded, exact)


def test_a_loaded_model_is_verified(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    with pretend_gpu(monkeypatch):
        assert gap_to_own("tiny", on_gpu(loaded(tiny))).size < TOLERANCE
