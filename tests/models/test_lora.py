"""LoRA: the reference equals the base bit for bit, the adapter computes like merged weights, runs resume exactly."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from forked import forked
from grouprl.algorithms.advantages import Credit
from grouprl.config.run import LoraConfig
from grouprl.learner import Learner, PolicyEvaluation
from grouprl.models.adapters import as_reference
from grouprl.models.load import fingerprint, load_model
from grouprl.types import Batch
from learner_setting import GradientKeeper
from letter_rewards import InProcess
from lora_models import (
    CORRECTED,
    CPU,
    PROJECTIONS,
    SCALE,
    adapted,
    assert_same_run,
    learner_of,
    learning,
    merged_by_hand,
    newest,
    run,
    sampled,
    saved,
    shaken,
)
from oracles import own_logits, own_model
from small_runs import as_killed, checkpoint_names, metrics
from tiny import tiny_model_folder
from variants import variant


@pytest.fixture(scope="module")
def straight(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of an adapter without an interruption, saved after every second step."""
    return run(tiny, tmp_path_factory.mktemp("straight"), checkpoint={"every": 2, "keep": 9}).directory


# One copy of the weights


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reference_is_the_base_model_to_the_last_bit(tiny: Path, dtype: str) -> None:
    policy = shaken(adapted(tiny))
    batch = sampled(policy, tiny, dtype)
    base = load_model(str(tiny), device=CPU)
    shared = learner_of(policy, policy, CORRECTED, dtype).evaluate(batch)
    apart = learner_of(policy, base, CORRECTED, dtype).evaluate(batch)
    assert shared.reference_NT is not None
    assert torch.equal(shared.reference_NT, apart.reference_NT)
    assert torch.equal(shared.policy_NT, apart.policy_NT)
    assert (shared.reference_NT - shared.policy_NT).abs().max() > 0.1


def test_a_new_adapter_changes_no_bit_and_learns_alone(tiny: Path) -> None:
    policy, base = adapted(tiny), load_model(str(tiny), device=CPU)
    batch = sampled(policy, tiny)
    ours, plain = (learner_of(model, None, CORRECTED).evaluate(batch).policy_NT for model in (policy, base))
    assert torch.equal(ours, plain)
    assert {name.split(".")[-4] for name in learning(policy)} == set(PROJECTIONS)
    assert {name.split(".")[-3] for name in learning(policy)} == {"lora_A", "lora_B"}
    assert {weight.dtype for weight in policy.parameters()} == {torch.float32}
    assert not policy.training


def test_the_adapter_is_on_again_whatever_happens_while_it_is_off(tiny: Path) -> None:
    policy = shaken(adapted(tiny))
    before, ids = set(learning(policy)), torch.tensor([[5, 9, 2, 40]])
    policy.set_attn_implementation("eager")
    on, off = policy(ids).logits, own_model(tiny)(ids).logits
    with pytest.raises(IndexError), as_reference(policy, policy) as reference:
        reference(torch.tensor([[10**6]]))
    assert torch.equal(policy(ids).logits, on)
    with as_reference(policy, policy) as reference:
        assert torch.equal(reference(ids).logits, off)
    assert not torch.equal(on, off)
    assert set(learning(policy)) == before


# The math


def learn(learner: Learner, batch: Batch) -> dict[str, float]:
    advantages_N = torch.tensor([1.2, -0.4, -0.8] * 3)
    credit = Credit(torch.where(batch.mask_NT, advantages_N[:, None], 0.0))
    return learner.learn(batch, credit, learner.evaluate(batch), step=2).metrics


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
def test_sampler_learner_and_merged_weights_agree(tmp_path: Path, kind: Any) -> None:
    folder = tiny_model_folder(tmp_path, kind=kind)
    policy = shaken(adapted(folder))
    batch = sampled(policy, folder)
    seen: PolicyEvaluation = learner_of(policy, None, CORRECTED).evaluate(batch)
    mask_NT = batch.mask_NT
    assert seen.policy_NT is not None
    torch.testing.assert_close(seen.policy_NT[mask_NT], batch.old_logprobs_NT[mask_NT], atol=1e-5, rtol=0)
    by_hand = merged_by_hand(folder, saved(policy, folder, tmp_path / "adapter"))
    expected_NT = own_logprobs(by_hand, batch)
    torch.testing.assert_close(seen.policy_NT.double()[mask_NT], expected_NT[mask_NT], atol=3e-5, rtol=0)  # rounding
    policy.double().set_attn_implementation("eager")
    torch.testing.assert_close(own_logprobs(policy, batch), expected_NT, atol=1e-9, rtol=0)


@torch.no_grad()
def own_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    expected_NT = torch.zeros(batch.mask_NT.shape, dtype=torch.float64)
    for row, group in enumerate(batch.group_of_N):
        ids = batch.token_ids_NT[row, batch.mask_NT[row]].tolist()
        logits_TV = own_logits(model, batch.prompts[group], ids)
        expected_NT[row, : len(ids)] = logits_TV.log_softmax(-1)[range(len(ids)), ids]
    return expected_NT


def gradient(model: PreTrainedModel, reference: PreTrainedModel, batch: Batch) -> dict[str, Tensor]:
    keeper = GradientKeeper(model)
    learn(Learner(model, reference, keeper, variant(kl_coef=0.2), CPU, "float32", 60), batch)
    return {name: value.double() for name, value in keeper.gradient.items()}


def test_the_gradient_is_that_of_the_merged_weights_by_the_chain_rule(tiny: Path, tmp_path: Path) -> None:
    policy, base = shaken(adapted(tiny)), load_model(str(tiny), device=CPU)
    batch = sampled(policy, tiny)
    merged = load_model(str(tiny), device=CPU)
    merged.load_state_dict(merged_by_hand(tiny, saved(policy, tiny, tmp_path / "adapter")).state_dict())
    ours, whole = gradient(policy, policy, batch), gradient(merged, base, batch)
    assert all("lora_" in name for name in ours)
    assert all(weight.grad is None for weight in policy.parameters() if not weight.requires_grad)
    weights = dict(policy.named_parameters())
    for name, got in ours.items():
        layer = re.sub(r"\.lora_[AB]\.default", "", name)
        A, B = (weights[re.sub(r"lora_[AB]", f"lora_{which}", name)].double() for which in "AB")
        # W + s B A: dL/dB = s dL/dW A^T, dL/dA = s B^T dL/dW
        expected = SCALE * (whole[layer] @ A.T if "lora_B" in name else B.T @ whole[layer])
        assert (got - expected).norm() <= 1e-3 * expected.norm()
        assert expected.norm() > 0


def test_an_update_moves_the_adapter_and_leaves_the_base(tiny: Path) -> None:
    policy = adapted(tiny)
    learner, batch = learner_of(policy, policy), sampled(policy, tiny)
    before = {name: weight.clone() for name, weight in policy.named_parameters()}
    learn(learner, batch)
    learn(learner, batch)  # the first moves B alone, because B was 0
    moved = {name for name, weight in policy.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == set(learning(policy))
    with as_reference(policy, policy):
        base = own_model(tiny)
        policy.set_attn_implementation("eager")
        assert torch.equal(policy(torch.tensor([[5, 9]])).logits, base(torch.tensor([[5, 9]])).logits)


def test_the_seed_decides_the_adapter_and_nothing_else_is_drawn(tiny: Path) -> None:
    torch.manual_seed(11)
    first = adapted(tiny, seed=2)
    drawn = torch.rand(1)
    torch.manual_seed(12)
    assert fingerprint(adapted(tiny, seed=2)) == fingerprint(first)
    assert fingerprint(adapted(tiny, seed=3)) != fingerprint(first)
    torch.manual_seed(11)
    assert torch.equal(torch.rand(1), drawn)


@pytest.mark.parametrize("targets", [("q_proj",), ("v_proj", "down_proj")])
def test_chosen_layers_alone_get_an_adapter(tiny: Path, targets: tuple[str, ...]) -> None:
    policy = adapted(tiny, LoraConfig(rank=2, targets=targets))
    assert {name.split(".")[-4] for name in learning(policy)} == set(targets)


# Runs


def test_a_killed_run_resumes_from_its_last_adapter(straight: Path, tiny: Path, tmp_path: Path) -> None:
    dying = InProcess(lambda calls: calls == 8 and os.kill(os.getpid(), signal.SIGKILL))
    # Two calls are of the evaluation before, one of the examples after step 1: this one is of step 5.
    often = {"every": 2, "keep": 9}
    with forked(lambda: run(tiny, tmp_path, reward=dying, checkpoint=often)) as killed:
        assert killed.wait() == -signal.SIGKILL
    assert checkpoint_names(tmp_path / "run") == ["step-000002", "step-000004"]
    going = InProcess(lambda calls: None)
    resumed = run(tiny, tmp_path, reward=going, resume=True, checkpoint=often)
    assert_same_run(straight, resumed.directory)


# With a critic


@pytest.mark.parametrize("critic", ["shared", "copy"])
def test_a_critic_learns_beside_an_adapter_and_resumes(tiny: Path, tmp_path: Path, critic: str) -> None:
    algorithm = variant(baseline="critic", credit="token", scale="none", critic=critic)
    changes = {"algorithm": algorithm, "steps": 2, "checkpoint": {"every": 1}}
    whole = run(tiny, tmp_path, "whole", **changes).directory
    parts = as_killed(whole, tmp_path / "parts", after=1)
    run(tiny, tmp_path, "parts", **changes, resume=True)
    assert_same_run(whole, parts)
    ours, theirs = (load_file(newest(one) / "trainer/critic.safetensors") for one in (whole, parts))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)
    assert ours["head.weight"].abs().max() > 0
    learned = {re.sub(r".*\.(lora_[AB])\..*", r"\1", name) for name in ours}
    assert learned == {"head.weight", "head.bias"} | ({"lora_A", "lora_B"} if critic == "copy" else set())
    assert all(row["critic_grad_norm"] > 0 for row in metrics(whole))
