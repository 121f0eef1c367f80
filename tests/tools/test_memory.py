"""The planner against what transformers counts, what torch allocates while a step is made, and what runs recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from counting import Costs
from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.spec import Algorithm
from grouprl.config.learner import UpdateConfig
from grouprl.config.run import LoraConfig
from grouprl.forward.attention import NAME, hidden_states
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.precision import round_weights
from grouprl.forward.recompute import recompute_activations
from grouprl.kernels.build import library
from grouprl.learner import Learner, Optimizer, make_batch
from grouprl.learner.packs import make_packs
from grouprl.models.adapters import add_adapter
from grouprl.models.load import frozen_copy, load_model, load_tokenizer
from grouprl.rollout.cache import CacheShape, GroupCache
from grouprl.rollout.engine import Request
from grouprl.rollout.forward import ModuleForward
from grouprl.rollout.native import NativeEngine
from grouprl.rollout.sampler import draw
from grouprl.run.machine import networks_mib
from grouprl.terms.critic import Critic
from grouprl.tools.planner import GRPO, PPO, SHAPES, ModelShape, Networks, StepShape, plan_memory, shape_of
from grouprl.tools.planner.shapes import config_shape
from grouprl.types import Completion, Group, Problem, Sampling, StopReason, UserError
from tape import TapeRecorder
from tiny import tiny_model_folder

CPU = torch.device("cpu")
MIB = 1 << 20
needs_kernels = pytest.mark.skipif(library() is None, reason="no C compiler")


def sizes(shape: ModelShape) -> dict[str, Any]:
    """A shape in the words of transformers."""
    return {
        "vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "tie_word_embeddings": shape.tied,
    }  # fmt: skip


def on_meta(shape: ModelShape) -> PreTrainedModel:
    """The same model as transformers makes it, without memory for its weights."""
    with torch.device("meta"):
        if shape.biases == "qkv":
            return Qwen2ForCausalLM(Qwen2Config(**sizes(shape)))
        return LlamaForCausalLM(
            LlamaConfig(**sizes(shape), head_dim=shape.head_size, attention_bias=shape.biases == "qkvo")
        )


def count(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_parameters_are_those_that_transformers_counts() -> None:
    assert {name: shape.parameters for name, shape in SHAPES.items()} == {
        name: count(on_meta(shape)) for name, shape in SHAPES.items()
    }


def test_critic_and_reward_model_are_decoders_with_a_head() -> None:
    shape = SHAPES["Llama-3.1-8B"]  # whose output embedding neither has
    policy = on_meta(shape)
    plan = plan_memory(shape, PPO)
    assert plan.networks.critic == 4 * count(Critic(policy, shared=False))
    with torch.device("meta"):
        assert plan.networks.reward_model == 4 * count(LlamaForSequenceClassification(LlamaConfig(**{
            **policy.config.to_dict(), "num_labels": 1,
        })))  # fmt: skip


def test_an_adapter_is_what_peft_puts_on_the_model() -> None:
    pytest.importorskip("peft")
    model = add_adapter(load_model("abacus", device=CPU), LoraConfig(rank=5), seed=0)
    plan = plan_memory(SHAPES["abacus"], Networks(lora_rank=5, critic=True))
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert plan.networks.adapter == plan.update.gradients == 4 * trained
    assert (plan.networks.moments, plan.networks.reference) == (8 * trained, 0)
    # A critic's frozen weights are the policy's own.
    assert plan.networks.critic == 4 * (trained + 128 + 1)


def test_packs_that_run_at_once_take_memory_together() -> None:
    """Two threads: two packs' activations, the gradient, and one that each pack holds until it is added."""
    shape, one = SHAPES["abacus"], StepShape(64, 8, 48, 96, device="cpu")
    alone, both = (plan_memory(shape, GRPO, replace(one, threads=threads)).update for threads in (1, 2))
    assert both.activations == 2 * alone.activations
    assert both.logits == 2 * alone.logits
    assert (alone.gradients, both.gradients) == (4 * shape.parameters, 3 * 4 * shape.parameters)
    # Threads beside a GPU, without a second pack, or inside the products of a large model change nothing.
    for other, step in (
        (shape, replace(one, device="cuda")),
        (shape, replace(one, problems=1)),
        (SHAPES["Qwen2.5-0.5B"], one),
    ):
        assert plan_memory(other, GRPO, replace(step, threads=2)) == plan_memory(other, GRPO, step)


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 9), st.integers(1, 9), st.integers(1, 60))
def test_the_packs_is_the_learners(problems: int, group_size: int, prompt: int, length: int, budget: int) -> None:
    batch = make_batch([group(str(place), prompt, group_size, length) for place in range(problems)], Sampling(length))
    packs = make_packs(batch, range(problems * group_size), budget, CPU)
    step = StepShape(problems, group_size, prompt, length, micro_batch_tokens=budget)
    assert step.largest_pack.tokens == max(len(pack.input_ids_S) for pack in packs)


def test_packs_without_a_budget() -> None:
    """A group of 8 is 48 + 8 * 95 = 808 tokens: one fits into 1,024 and 20 into 16,384. One of 100 has 9,548."""
    step = StepShape(64, 8, 48, 96, device="cpu")
    assert (step.largest_pack.tokens, step.largest_pack.completions) == (808, 8)
    on_gpu = StepShape(64, 8, 48, 96, device="cuda").largest_pack
    assert (on_gpu.tokens, on_gpu.completions) == (20 * 808, 160)
    assert StepShape(64, 100, 48, 96, device="cpu").largest_pack.tokens == 9548
    # Of 4 minibatches of 64 groups each has 16.
    assert StepShape(64, 8, 48, 96, minibatches=4).largest_pack.tokens == 16 * 808


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cache_is_the_engines(dtype: str) -> None:
    shape, step = SHAPES["Qwen2.5-0.5B"], StepShape(16, 8, 256, 512, max_rows=64, dtype=dtype)  # type: ignore[arg-type]
    # 64 rows decode 8 groups of 8 at once; four times as many prompts are held, but there are 16.
    cache = GroupCache(CacheShape(24, 2, 64, 16, 64, 256, 512), torch.device("meta"), getattr(torch, dtype))
    kept = (cache.prompt_keys, cache.prompt_values, cache.own_keys, cache.own_values)
    plan = plan_memory(shape, GRPO, step)
    assert plan.rollout.cache == sum(tensor.nbytes for tensor in kept)
    assert StepShape(100, 8, 9, 9, max_rows=64).cached_prompts == 32


def group(name: str, prompt: int, completions: int, length: int) -> Group:
    row = [(7 * index + place) % 500 + 2 for index in range(completions) for place in range(length)]
    flat = (-5.0,) * length
    return Group(
        Problem(name, name),
        tuple(range(10, 10 + prompt)),
        tuple(
            Completion(index, tuple(row[index * length :][:length]), flat, flat, "", StopReason.LENGTH, 0)
            for index in range(completions)
        ),
    )


SMALL = ModelShape("small", 4, 128, 4, 2, 32, 304, 512, tied=True)
HALF = replace(SMALL, layers=2)


def small(shape: ModelShape = SMALL) -> PreTrainedModel:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes(shape)))
    model.set_attn_implementation(NAME)
    return model.eval()


def peak_of_an_update(step: StepShape, networks: Networks = GRPO, shape: ModelShape = SMALL) -> tuple[int, float]:
    """Bytes of the tensors that live at once while a small model learns from a batch, and those that it keeps.

    The batch is not its first.
    """
    model = small(shape)
    if networks.weights == "bfloat16":
        round_weights(model)
    if step.recompute:
        recompute_activations(model)
    learner = Learner(
        policy=model,
        reference=frozen_copy(model),
        optimizer=Optimizer(model, UpdateConfig(moments=networks.moments)),
        algorithm=Algorithm(),
        device=CPU,
        dtype=step.dtype,
        micro_batch_tokens=step.micro_batch_tokens,
    )
    whole = [
        group(str(place), step.prompt_tokens, step.group_size, step.completion_tokens) for place in range(step.problems)
    ]
    if step.shared_tokens:  # the prompts differ after these
        own = step.prompt_tokens - step.shared_tokens
        whole = [replace(one, prompt_ids=one.prompt_ids[:-own] + (place,) * own) for place, one in enumerate(whole)]
    for groups in ([group("first", 2, 2, 2)], whole):  # the first makes the moments
        batch = make_batch(groups, Sampling(step.completion_tokens))
        credit = Credit(batch.mask_NT * torch.linspace(-1, 1, len(batch.mask_NT))[:, None])
        seen = learner.evaluate(batch)
        with Costs() as costs:
            learner.learn(batch, credit, seen, step=2)
    return costs.peak, sum(networks_mib(learner).values()) * MIB


@needs_kernels
@pytest.mark.parametrize(
    "networks", [Networks(weights="bfloat16", moments="bfloat16"), Networks(moments="8bit")], ids=["bfloat16", "8bit"]
)
@pytest.mark.parametrize(
    "shape", [ModelShape("wide", 2, 256, 4, 2, 64, 512, 2048, tied=True), HALF], ids=lambda shape: shape.name
)
def test_what_a_learner_takes(shape: ModelShape, networks: Networks) -> None:
    """Measured tensors of an optimizer that has made updates; the vocabulary of one is much of the model."""
    step = StepShape(2, 4, 24, 40, micro_batch_tokens=190, dtype="bfloat16", device="cpu")
    plan = plan_memory(shape, networks, step)
    peak, kept = peak_of_an_update(step, networks, shape)
    assert plan.held == pytest.approx(kept, rel=0.01)
    assert plan.learning == pytest.approx(kept + peak, rel=0.1)


@needs_kernels
@pytest.mark.parametrize(
    ("step", "high"),
    [
        (StepShape(2, 8, 48, 96, micro_batch_tokens=250, device="cpu"), 1.05),
        (StepShape(2, 8, 48, 96, dtype="bfloat16", device="cpu"), 1.05),  # whose products are slow on a CPU
        (StepShape(4, 8, 48, 96, device="cpu", recompute=True), 1.08),
        # Rounded weights are counted for all layers at once, and live for one where layers are run again.
        (StepShape(2, 8, 48, 96, dtype="bfloat16", device="cpu", recompute=True), 1.25),
        (StepShape(2, 8, 432, 96, device="cpu", shared_tokens=384), 1.05),
    ],
    ids=["budget", "bfloat16", "recomputed", "bfloat16 recomputed", "shared tokens"],
)
def test_the_peak_of_an_update(step: StepShape, high: float) -> None:
    shape = SMALL if step.recompute else HALF
    plan = plan_memory(shape, GRPO, step)
    assert 0.95 <= (plan.learning - plan.held) / peak_of_an_update(step, shape=shape)[0] <= high


@needs_kernels
@pytest.mark.parametrize(("problems", "group_size"), [(60, 1), (8, 8), (2, 1)])
@pytest.mark.parametrize("inner", [304, 1024])
def test_the_peak_of_sampling(problems: int, group_size: int, inner: int) -> None:
    """Prompts that are read at once need more than what is cached of them; an evaluation reads the most."""
    shape, ids = ModelShape("", 3, 192, 4, 2, 48, inner, 512, tied=True), range(100)
    engine = NativeEngine(small(shape), load_tokenizer("abacus"), seed=0, max_rows=64)
    requests = [
        Request(Problem(str(one), str(one)), tuple((7 * one + at) % 500 + 2 for at in ids), group_size)
        for one in range(problems)
    ]
    with Costs() as costs:
        engine.generate(requests, Sampling(8))
    step = StepShape(problems, group_size, len(ids), 8, max_rows=64, device="cpu")
    plan = plan_memory(shape, GRPO, step)
    assert 0.9 <= (plan.sampling - plan.held) / costs.peak <= 1.1
    # As an evaluation of a run whose steps are smaller.
    if group_size == 1:
        run = replace(step, problems=1, group_size=1, held_out=problems)
        assert plan_memory(shape, GRPO, run).rollout == plan.rollout


def gemma(layers: int, lora: LoraConfig) -> tuple[ModelShape, PreTrainedModel]:
    fields = {
        "model_type": "gemma3_text", "hidden_size": 160, "intermediate_size": 512, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 512,
        "tie_word_embeddings": True,
    }  # fmt: skip
    torch.manual_seed(0)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**fields))
    model.set_attn_implementation(NAME)
    return config_shape(fields, "gemma", Path("config.json")), add_adapter(model.eval(), lora, seed=0)


def test_an_adapter_of_gemma_whose_layers_the_kernels_do_not_compute() -> None:
    """Four norms and GeGLU; of the peak, what a layer adds."""
    pytest.importorskip("peft")
    peaks, planned = [], []
    step = StepShape(3, 8, 96, 40, device="cpu")
    batch = make_batch([group(str(place), 96, 8, 40) for place in range(3)], Sampling(40))
    credit = Credit(batch.mask_NT * torch.linspace(-1, 1, len(batch.mask_NT))[:, None])
    for layers in (2, 4):
        shape, model = gemma(layers, LoraConfig(rank=4))
        learner = Learner(
            policy=model, reference=None, optimizer=Optimizer(model, UpdateConfig()), algorithm=Algorithm(kl=None),
            device=CPU, dtype="float32", micro_batch_tokens=0,
        )  # fmt: skip
        seen = learner.evaluate(batch)
        with Costs() as costs:
            learner.learn(batch, credit, seen, step=2)
        peaks.append(costs.peak)
        planned.append(plan_memory(shape, Networks(reference=False, lora_rank=4), step).update.total)
    assert planned[1] - planned[0] == pytest.approx(peaks[1] - peaks[0], rel=0.1)


def test_the_cache_with_shared_tokens() -> None:
    shape = ModelShape("", 2, 128, 4, 2, 32, 304, 512, tied=True)
    step = StepShape(4, 8, 96, 32, device="cpu", shared_tokens=64)
    held = GroupCache(CacheShape(2, 2, 32, 4, 32, 96 - 64, 32, before=64), CPU, torch.float32)
    tensors = [getattr(held, f"{part}_{kind}") for part in ("prompt", "own", "prefix") for kind in ("keys", "values")]
    # Beside the cache, the keys and values that prompts are read with.
    expected = sum(tensor.nbytes for tensor in tensors) + held.prefix_keys.nbytes + held.prefix_values.nbytes
    assert plan_memory(shape, GRPO, step).rollout.cache == expected


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GROUPRL_KERNELS", "off")
    library.cache_clear()
    yield
    monkeypatch.undo()
    library.cache_clear()


def kept_per_layer(dtype: str, layout: TreeLayout) -> float:
    """Bytes that autograd keeps of one more layer, weights apart, where the compiled kernels do not run."""
    totals = []
    for layers in (2, 3):
        model = small(ModelShape("", layers, 128, 4, 2, 32, 304, 512, tied=True))
        own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        sizes = {weight.numel() for weight in model.parameters()}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor, own: set[int] = own, kept: dict[int, Tensor] = kept) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        rounding = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
        no_padding = patch("grouprl.forward.attention.padded_rows", lambda count, *_, **__: count)  # a GPU has none
        with no_padding, rounding, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            hidden_states(model, torch.arange(layout.size) % 500, layout.position_ids_S, layout)
        # Rounded weights are counted by themselves; no activation has as many elements as one.
        totals.append(sum(t.untyped_storage().nbytes() for t in kept.values() if t.numel() not in sizes))
    return totals[1] - totals[0]


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(
    ("prompt", "own", "step", "within"),
    [
        (101, (), StepShape(1, 1, 100, 2, dtype="float32", device="cuda"), 0.001),
        (101, (), StepShape(1, 1, 100, 2, dtype="bfloat16", device="cuda"), 0.001),
        # Sharded: its hooks keep the compiled kernels out, and torch's attention keeps scores of each token.
        (48, (63,) * 8, StepShape(1, 8, 48, 64, device="cpu"), 0.1),
        (96, (31,) * 8, StepShape(1, 8, 96, 32, device="cpu"), 0.1),
    ],
    ids=["gpu", "gpu in bfloat16", "sharded", "sharded, a long prompt"],
)
def test_what_a_layer_keeps(prompt: int, own: tuple[int, ...], step: StepShape, within: float) -> None:
    def planned(layers: int) -> int:
        shape = ModelShape("", layers, 128, 4, 2, 32, 304, 512, tied=True)
        return plan_memory(shape, GRPO, step, sharded=step.device == "cpu").update.activations

    assert step.largest_pack.tokens == prompt + sum(own)
    kept = kept_per_layer(step.dtype, TreeLayout((prompt,), (own,), CPU))
    assert planned(3) - planned(2) == pytest.approx(kept, rel=within)


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drawing_on_a_gpu_is_the_samplers(dtype: str) -> None:
    """The kept logits of CUDA graphs, and the arrays that `draw` has at once."""
    step = StepShape(2, 8, 4, 4, dtype=dtype, device="cuda")  # type: ignore[arg-type]
    logits = torch.randn(16, 4096).to(getattr(torch, dtype))
    with Costs() as costs:
        draw(logits, torch.rand(16, dtype=torch.float64), Sampling())
    planned = plan_memory(ModelShape("", 1, 8, 1, 1, 8, 8, 4096, tied=True), GRPO, step).rollout.drawing
    assert planned == pytest.approx(logits.nbytes + costs.peak, rel=0.01)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_the_copies_are_those_of_the_forward_pass(tmp_path: Path, kind: str) -> None:
    folder = tiny_model_folder(tmp_path, kind=kind)  # type: ignore[arg-type]
    model = load_model(str(folder), device=CPU)
    forward = ModuleForward(model, CacheShape(2, 2, 16, 1, 1, 1, 1), torch.bfloat16, TapeRecorder())
    copied = sum(copy.nbytes for copies in forward._copies.values() for copy in copies.values() if copy.dim() > 1)
    assert plan_memory(shape_of(str(folder)), GRPO, StepShape(dtype="bfloat16")).rollout.copies == copied
    assert plan_memory(shape_of(str(folder)), GRPO, StepShape(dtype="bfloat16", device="cpu")).rollout.copies == 0


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("recompute", [False, True])
def test_the_peak_of_an_adapters_update_on_a_gpu(recompute: bool) -> None:
    """On a GPU's path autocast keeps no frozen weights; the backward pass keeps them unless layers run again."""
    pytest.importorskip("peft")
    shape = ModelShape("small", 3, 128, 4, 2, 32, 304, 512, tied=True)
    step = StepShape(1, 4, 20, 24, micro_batch_tokens=1, dtype="bfloat16", device="cuda", recompute=recompute)
    model = add_adapter(small(shape), LoraConfig(rank=4), seed=0)
    if recompute:
        recompute_activations(model)
    learner = Learner(model, None, Optimizer(model, UpdateConfig()), Algorithm(kl=None), CPU, "bfloat16", 1)
    for one in (group("first", 2, 2, 2), group("0", 20, 4, 24)):  # the first makes the moments
        batch = make_batch([one], Sampling(24))
        credit = Credit(batch.mask_NT * torch.linspace(-1, 1, len(batch.mask_NT))[:, None])
        before = learner.evaluate(batch)
        with Costs() as costs:
            learner.learn(batch, credit, before, step=2)
    plan = plan_memory(shape, Networks(reference=False, lora_rank=4), step)
    assert 0.95 <= (plan.learning - plan.held) / costs.peak <= 1.15


def test_logits_are_bounded_whatever_the_batch() -> None:
    shape, head = SHAPES["Qwen2.5-7B"], 4 * 152_064 * 3584
    plan = plan_memory(shape, GRPO, StepShape(64, 8, 256, 4096, device="cuda"))
    predicted = plan.pack.completions * 4096 * 3584 * 4
    assert 120 * MIB < plan.update.logits - head - predicted <= 128 * MIB
    # An adapter leaves the output embedding alone.
    frozen = plan_memory(shape, Networks(lora_rank=8), StepShape(64, 8, 256, 4096, device="cuda"))
    assert plan.update.logits - frozen.update.logits == head


def test_sums() -> None:
    on_cpu = plan_memory(SMALL, PPO, StepShape(device="cpu"))
    on_gpu = plan_memory(SMALL, PPO, StepShape(device="cuda", dtype="bfloat16"))
    weights = 4 * SMALL.parameters
    # Policy, reference, reward model and critic; moments of policy and critic.
    assert on_cpu.held == pytest.approx(weights * (4 + 2 * 2), rel=2e-3)
    assert on_cpu.sampling == on_cpu.held + on_cpu.rollout.cache + on_cpu.rollout.reading  # more than the logits
    # Cache and weights of CUDA graphs stay while the policy learns.
    assert on_gpu.held == on_cpu.held + on_gpu.rollout.cache + on_gpu.rollout.copies
    assert on_gpu.sampling == on_gpu.held + max(on_gpu.rollout.reading, on_gpu.rollout.drawing)
    assert on_gpu.peak == on_gpu.learning > on_gpu.sampling
    paged = [plan_memory(SMALL, Networks(paged=True), StepShape(device=device)) for device in ("cpu", "cuda")]
    assert [plan.networks.moments > 0 for plan in paged] == [True, False]
    assert on_gpu.rounded == 2 * (4 * (128 * (128 + 64 + 64) + 128 * 128 + 3 * 128 * 304) + 512 * 128)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"problems": 0}, "problems: expected 1 or more"),
        ({"micro_batch_tokens": -1}, r"micro_batch_tokens: expected 0 \(automatic\) or more tokens, got -1"),
        ({"dtype": "float16"}, "dtype: expected one of float32, bfloat16"),
        ({"shared_tokens": 256}, "shared_tokens: expected 0 to prompt_tokens - 1, got 256"),
    ],
)
def test_what_is_out_of_range_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        StepShape(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="lora_rank: expected 1 or more"):
        plan_memory(SMALL, Networks(lora_rank=0))
