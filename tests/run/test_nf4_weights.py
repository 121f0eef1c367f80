"""Runs that keep the frozen model below an adapter in 4 bits (QLoRA): its numbers, resumes, memory and refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from grouprl import Trainer, UserError
from grouprl.algorithms.named import NAMED
from grouprl.config.run import ModelConfig, RunConfig
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.precision import autocast
from grouprl.record.layout import RunDirectory
from grouprl.rewards.functions import WeightedReward
from grouprl.rollout import NativeEngine
from grouprl.rollout.verify import sampler_gap
from grouprl.tools.planner import Networks, plan_memory, shape_of
from letter_rewards import letters
from small_runs import ROWS, grouprl, metrics, small_config

pytest.importorskip("bitsandbytes", reason="extra qlora")
pytestmark = pytest.mark.usefixtures("no_page")
MODEL = {"weights": "nf4", "dtype": "bfloat16", "lora": {"rank": 4}}
# Quantiles of a normal distribution, from the appendix of arXiv:2305.14314.
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def config_of(runs: Path, name: str, **changes: Any) -> RunConfig:
    usual = {"steps": 4, "checkpoint": {"every": 2, "keep": 9}, "evaluation": {"problems": 2, "samples": 0}}
    return small_config(runs, name, **{"model": MODEL} | usual | changes)


def train(tiny: Path, config: RunConfig, *, resume: bool = False) -> Path:
    return Trainer(tiny, ROWS, [WeightedReward("letters", letters)], config=config).train(resume=resume).directory


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


def test_sampler_and_learner_agree(tiny: Path) -> None:
    model = load_model(ModelConfig(path=str(tiny)), device=torch.device("cpu"), weights="nf4")
    add_adapter(model, RunConfig(model=MODEL).model.lora, seed=1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(3))
    engine = NativeEngine(model, load_tokenizer(str(tiny)), seed=3, max_rows=4, dtype="bfloat16")
    with autocast(model.device, "bfloat16"):
        assert sampler_gap(engine, model, (5, 6, 7, 9)) < 0.02


def test_a_resumed_run_is_the_same_to_the_bit(tiny: Path, tmp_path: Path) -> None:
    chosen = {"learner": {"learning_rate": 1e-3, "micro_batch_tokens": 60}}
    whole = train(tiny, config_of(tmp_path, "whole", **chosen))
    again = tmp_path / "again"
    shutil.copytree(whole, again)  # as a kill left it after step 2
    shutil.rmtree(RunDirectory(again).checkpoint(4).path)
    (again / "summary.json").unlink()
    train(tiny, config_of(tmp_path, "again", **chosen), resume=True)
    assert metrics(whole) == metrics(again)
    files = [RunDirectory(run).checkpoint(4).path / "adapter_model.safetensors" for run in (whole, again)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert max(row["sampler_learner_gap"] for row in metrics(whole)) < 0.05


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
    ("model", "said"),
    [
        ({"weights": "nf4", "dtype": "bfloat16"}, r"model\.weights: expected an adapter with nf4.*model\.lora={}"),
        ({**MODEL, "dtype": "float32"}, r"model\.weights: .* got nf4: set model\.dtype=bfloat16"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tiny: Path, tmp_path: Path, model: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        train(tiny, config_of(tmp_path, "refused", model=model))
    assert not (tmp_path / "refused").exists()


def test_a_plan_is_refused_as_its_run_would_be() -> None:
    ended = grouprl("plan", "demo", "model.weights=nf4", "model.dtype=bfloat16")
    assert ended.code == 2
    assert "model.weights: expected an adapter with nf4" in ended.text


def test_what_reads_weights_elsewhere_is_refused(tiny: Path, tmp_path: Path) -> None:
    engine = {"engine": {"name": "vllm", "address": "http://127.0.0.1:1"}}
    with pytest.raises(UserError, match=r"model\.weights: expected bfloat16 with samplers in other processes, got nf4"):
        train(tiny, config_of(tmp_path, "refused", rollout=engine))
    with pytest.raises(UserError, match=r"model\.weights: expected bfloat16 with a critic beside the policy, got nf4"):
        train(tiny, config_of(tmp_path, "refused", algorithm=NAMED["ppo"]))
