"""Runs that keep less than float32: weights in bfloat16 or 4 bits (QLoRA), moments in 8 bits."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from grouprl import UserError
from grouprl.algorithms.named import NAMED
from grouprl.config.checks import check_sections
from grouprl.config.run import ModelConfig, RunConfig
from grouprl.forward.precision import autocast
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_model, load_tokenizer
from grouprl.record.layout import RunDirectory
from grouprl.rollout import NativeEngine
from grouprl.rollout.verify import sampler_gap
from grouprl.tools.planner import Networks, plan_memory, shape_of
from small_runs import as_killed, assert_same_weights, grouprl, metrics, small_config, small_run, tree

BFLOAT16 = {"weights": "bfloat16", "dtype": "bfloat16"}
NF4 = {"weights": "nf4", "dtype": "bfloat16", "lora": {"rank": 4}}
SMALL = {"moments": "8bit"}
SERVED = {"engine": {"name": "vllm", "address": "http://127.0.0.1:1"}}
needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="extra qlora")
# Quantiles of a normal distribution, from the appendix of arXiv:2305.14314.
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def config_of(runs: Path, name: str, **changes: Any) -> RunConfig:
    usual = {"steps": 2, "checkpoint": {"every": 1, "keep": 9}, "evaluation": {"problems": 2, "samples": 0}}
    return small_config(runs, name, **usual | changes)


def train(tiny: Path, config: RunConfig, *, resume: bool = False) -> Path:
    return small_run(tiny, config, resume=resume).directory


@pytest.mark.parametrize(
    ("model", "algorithm", "moments"),
    [
        (BFLOAT16, "grpo", "bfloat16"), (BFLOAT16, "ppo", "float32"), ({}, "ppo", "8bit"),
        pytest.param(NF4, "grpo", "float32", marks=needs_bitsandbytes),
    ],
)  # fmt: skip
def test_a_resumed_run_is_the_same_to_the_bit(
    tiny: Path, tmp_path: Path, model: dict[str, Any], algorithm: str, moments: str
) -> None:
    learner = {"learning_rate": 1e-3, "micro_batch_tokens": 60, "moments": moments}
    chosen = {"algorithm": NAMED[algorithm], "learner": learner}
    whole = train(tiny, config_of(tmp_path, "whole", model=model, **chosen))
    again = as_killed(whole, tmp_path / "again", after=1)
    threads = 1 if model is NF4 else 2  # whose products are a library's
    train(tiny, config_of(tmp_path, "again", model={**model, "threads": threads}, **chosen), resume=True)
    assert metrics(whole) == metrics(again)
    ours, theirs = (
        {name: text for name, text in tree(RunDirectory(run).checkpoint(2).path).items() if "safetensors" in name}
        for run in (whole, again)
    )
    assert len(ours) >= 2
    assert ours == theirs


def test_a_checkpoint_is_in_bfloat16_and_others_load_it(tiny: Path, tmp_path: Path) -> None:
    run = train(tiny, config_of(tmp_path, "run", model=BFLOAT16, steps=1, evaluation={"problems": 0}))
    saved = load_file(RunDirectory(run).checkpoint(1).path / "model.safetensors")
    assert {(tensor.ndim > 1, tensor.dtype) for tensor in saved.values()} == {
        (True, torch.bfloat16),
        (False, torch.float32),
    }
    theirs = AutoModelForCausalLM.from_pretrained(RunDirectory(run).checkpoint(1).path)
    assert theirs.config.dtype == torch.bfloat16
    embedding = theirs.get_input_embeddings().weight.detach()
    assert torch.equal(embedding.bfloat16(), saved["model.embed_tokens.weight"])


def test_a_reference_on_the_cpu_gives_the_same_run(tiny: Path, tmp_path: Path) -> None:
    """As far as a machine without a GPU can tell: the reference is where it was asked for already."""
    for place in ("device", "cpu"):
        train(tiny, small_config(tmp_path, place, steps=2, model={"reference": place}))
    assert_same_weights(
        RunDirectory(tmp_path / "device").checkpoint(2).path, RunDirectory(tmp_path / "cpu").checkpoint(2).path
    )


@needs_bitsandbytes
def test_a_layer_multiplies_with_the_nearest_of_sixteen_numbers(tiny: Path) -> None:
    cpu = torch.device("cpu")
    exact, small = (load_model(str(tiny), device=cpu, weights=weights) for weights in ("bfloat16", "nf4"))
    for name in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
        weight, layer = exact.get_submodule(name).weight.float(), small.get_submodule(name)
        blocks = weight.reshape(-1, 64)
        largest = blocks.abs().amax(1, keepdim=True)
        nearest = (blocks[..., None] / largest[..., None] - torch.tensor(LEVELS)).abs().argmin(-1)
        expected = (torch.tensor(LEVELS)[nearest] * largest).reshape(weight.shape)
        bias = layer.bias.float() if layer.bias is not None else 0.0
        found = (layer(torch.eye(weight.shape[1])) - bias).T
        # The scales of blocks are in 8 bits, the products in bfloat16.
        assert (found - expected).abs().max() < 0.03 * weight.abs().max()
        assert (weight - expected).abs().max() > 0.05 * weight.abs().max()


@needs_bitsandbytes
def test_sampler_and_learner_agree(tiny: Path) -> None:
    model = load_model(ModelConfig(path=str(tiny)), device=torch.device("cpu"), weights="nf4")
    add_adapter(model, RunConfig(model=NF4).model.lora, seed=1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(3))
    engine = NativeEngine(model, load_tokenizer(str(tiny)), seed=3, max_rows=4, dtype="bfloat16")
    with autocast(model.device, "bfloat16"):
        assert sampler_gap(engine, model, (5, 6, 7, 9)).size < 0.02


@needs_bitsandbytes
def test_the_plan_counts_what_is_kept(tiny: Path) -> None:
    model = load_model(str(tiny), device=torch.device("cpu"), weights="nf4")
    plan = plan_memory(shape_of(str(tiny)), Networks(lora_rank=4, weights="nf4"))
    kept = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    for layer in model.get_decoder().modules():
        state = getattr(getattr(layer, "weight", None), "quant_state", None)
        if state is not None:
            kept += state.absmax.numel() * state.absmax.element_size()
            kept += state.state2.absmax.numel() * 4 if state.nested else 0
    assert plan.networks.policy == pytest.approx(kept, rel=0.02)
    assert plan.networks.reference == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"weights": "bfloat16"}}, r"set model\.dtype=bfloat16"),
        ({"model": {**NF4, "lora": None}}, r"model\.weights: expected an adapter with nf4.*model\.lora={}"),
        ({"model": {**NF4, "dtype": "float32"}}, r"model\.weights: .* got nf4: set model\.dtype=bfloat16"),
        (
            {"model": NF4, "rollout": SERVED},
            r"model\.weights: expected bfloat16 with samplers in other processes, got nf4",
        ),
        (
            {"model": NF4, "algorithm": NAMED["ppo"]},
            r"model\.weights: expected bfloat16 with a critic beside the policy",
        ),
        ({"model": BFLOAT16, "learner": SMALL}, r"learner\.moments: expected bfloat16 with model\.weights"),
        (
            {"learner": SMALL, "distributed": {"shard": True}},
            r"learner\.moments: expected its default with distributed",
        ),
        ({"model": {**BFLOAT16, "lora": {}}, "learner": SMALL}, ""),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) if said else nullcontext():
        check_sections(config_of(tmp_path, "refused", **changes))


def test_a_plan_and_a_run_are_refused_in_the_same_way(tmp_path: Path) -> None:
    for verb in ("plan", "train"):
        ended = grouprl(verb, "demo", "model.weights=nf4", "model.dtype=bfloat16", f"runs_dir={tmp_path}")
        assert ended.code == 2
        assert "model.weights: expected an adapter with nf4" in ended.text
    assert list(tmp_path.iterdir()) == []
