"""Layouts of several GPUs by hand, and what ranks of real runs hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from grouprl.models.load import load_tokenizer
from grouprl.models.save import save_model
from grouprl.tools.planner import GRPO, SHAPES, StepShape, plan_memory, shape_of
from grouprl.tools.planner.layouts import GPUS, RankLayout, memory_of_rank, parse_gpus, plan_layout, plan_layouts
from grouprl.types import UserError
from ranked_runs import Place, torchrun_all
from small_runs import grouprl

SEVEN = SHAPES["Qwen2.5-7B"]
STEP = StepShape(64, 8, 256, 512, dtype="bfloat16")
MIB = 1 << 20


def test_the_batch_is_divided_and_the_counts_of_a_rank_are_those_of_its_part():
    (whole, shards) = plan_layouts(SEVEN, GRPO, STEP, 8, GPUS["H100"])
    part = replace(STEP, problems=8)
    assert whole.memory == plan_memory(SEVEN, GRPO, part)
    assert (whole.layout.shard, shards.layout.shard) == (1, 8)
    assert plan_layouts(SEVEN, GRPO, STEP, 1, GPUS["H100"])[0].memory == plan_memory(SEVEN, GRPO, STEP)
    (_, across) = plan_layouts(SEVEN, GRPO, STEP, 16, GPUS["H100"])
    assert across.layout == RankLayout(16, 8)  # the machines replicate


def test_shards_by_hand():
    plan = plan_layout(SEVEN, GRPO, STEP, RankLayout(8, 8), GPUS["H100"])
    # 7,615,616,512 weights in float32, an eighth of them; two moments; a reference.
    assert plan.memory.networks.policy == plan.memory.networks.reference == 4 * 7_615_616_512 // 8
    assert plan.memory.networks.moments == 2 * 4 * 7_615_616_512 // 8
    assert plan.memory.update.gradients == 4 * 7_615_616_512 // 8
    # Two embeddings of 152,064 x 3,584 whole in float32, all 28 layers in bfloat16 while it samples.
    embeddings = 2 * 152_064 * 3584
    assert plan.gathered_sampling == 4 * embeddings + 2 * (7_615_616_512 - embeddings)
    assert plan.peak == max(
        plan.memory.learning + plan.gathered_learning, plan.memory.sampling + plan.gathered_sampling
    )


def test_what_fits_is_the_largest_that_fits():
    layout, gpu, step = RankLayout(8, 8), GPUS["A100"], replace(STEP, recompute=True)
    longest = plan_layout(SEVEN, GRPO, step, layout, gpu).longest_completion
    for tokens, fits in ((longest, True), (longest + 1, False)):
        plan = plan_layout(SEVEN, GRPO, replace(step, completion_tokens=tokens), layout, gpu)
        assert (plan.peak <= gpu.memory) == fits


@pytest.mark.parametrize("text", ["H100", "0xH100", "8xV100", "8 H100", "8x"])
def test_gpus_that_are_none_are_refused(text: str):
    with pytest.raises(UserError, match="--gpus: "):
        parse_gpus(text)
    assert parse_gpus("16xh200") == (16, GPUS["H200"])


def test_the_layouts_on_one_screen():
    ended = grouprl("plan", "--model", "Qwen2.5-7B", "--gpus", "8xH100", "model.dtype=bfloat16")
    assert ended.code == 0
    for said in (
        "on 8xH100",
        "at most 2 x 8 a rank",
        "distributed.shard=true, on 8",
        "No layout was measured on GPUs.",
    ):
        assert said in ended.text
    found = json.loads(grouprl("plan", "--model", "Qwen2.5-7B", "--gpus", "8xH100", "--json").out)
    assert [one["layout"] for one in found] == [{"ranks": 8, "shard": 1}, {"ranks": 8, "shard": 8}]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_a_rank_holds_is_what_was_planned(tiny: Path, tmp_path: Path, ranks: int):
    sizes = [(64, 128, 2), (96, 256, 3), (160, 384, 4)]
    tokenizer = load_tokenizer(str(tiny))
    places = []
    for hidden, inner, layers in sizes:
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=4, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=True,
        )  # fmt: skip
        folder = tmp_path / f"{hidden}"
        save_model(LlamaForCausalLM(config), tokenizer, folder / "model")
        places.append(Place(folder / "model", folder))
    commands = [place.arguments("run", steps=1, distributed={"shard": True}) for place in places]
    ended = torchrun_all(ranks, commands)
    assert ended.code == 0, ended.text
    for place in places:
        held = json.loads((place.runs / "run" / "summary.json").read_text())["networks_mib"]
        plan = memory_of_rank(shape_of(str(place.model)), GRPO, STEP, RankLayout(ranks, ranks)).networks
        for part, size in (("policy", plan.policy), ("reference", plan.reference), ("optimizer", plan.moments)):
            assert held[part] == pytest.approx(size / MIB, rel=0.02), part
