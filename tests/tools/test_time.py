"""The time of a step by hand; shapes of models; layouts of several GPUs; a GPU that the CPU pretends to be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PretrainedConfig

from grouprl import models
from grouprl.config.command_line import config_of
from grouprl.config.run import RunConfig
from grouprl.forward.devices import resolve_device
from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.save import save_model
from grouprl.run.machine import machine_facts
from grouprl.tasks import load_task
from grouprl.tools.planner import (
    GRPO,
    PPO,
    SHAPES,
    ModelShape,
    Networks,
    StepShape,
    doctor,
    machine,
    plan_memory,
    shape_of,
    time,
)
from grouprl.tools.planner.fits import MOST_COMPLETIONS, largest_group, longest_completion
from grouprl.tools.planner.layouts import GPUS, RankLayout, memory_of_rank, parse_gpus, plan_layout, plan_layouts
from grouprl.tools.planner.machine import Rates
from grouprl.tools.planner.screen import plan_run
from grouprl.tools.planner.time import PromptSizes, floor_of_step, measured_pace, prompt_sizes
from grouprl.types import UserError
from pretend_gpu import GPU, pretend_gpu
from ranked_runs import Place, torchrun_all
from small_runs import grouprl

# One layer of 4 x (4 x 4) attention and 3 x (4 x 8) feed-forward weights = 160; a vocabulary of 10 x 4 = 40.
TINY = ModelShape("tiny", 1, 4, 1, 1, 4, 8, 10, tied=True)
SECOND = Rates(1.0, 1e30)  # one FLOP per second
READS = Rates(1e30, 1.0)  # one byte per second
STEP = StepShape(problems=2, group_size=3, prompt_tokens=5, completion_tokens=4, dtype="float32", device="cpu")


def test_products_by_hand() -> None:
    # A group is 5 + 3 x 3 = 14 tokens, since last tokens are not read; 6 x 4 = 24 tokens are predicted.
    forward = 2 * (160 * 28 + 40 * 24)
    found = floor_of_step(TINY, GRPO, STEP, SECOND)
    assert found.prompts == 2 * 160 * 10
    assert found.decoding == pytest.approx(3 * 2 * (160 + 40) * 6)  # the prompt gives the first token
    assert (found.reference, found.learning) == (forward, 3 * forward)
    assert (found.critic, found.reward_model) == (0, 0)
    ppo = floor_of_step(TINY, PPO, STEP, SECOND, passes=2)
    assert ppo.learning == 6 * forward
    assert ppo.critic == 2 * 160 * 28 * (1 + 3 * 2)
    assert ppo.reward_model == 2 * 160 * 28
    assert ppo.total == ppo.prompts + ppo.decoding + ppo.reference + ppo.critic + ppo.reward_model + ppo.learning


def test_tokens_that_all_prompts_share_are_read_once() -> None:
    # Of 5 prompt tokens 3 are shared: 2 x 2 + 3 to read before decoding, and a group is 2 + 3 x 3 = 11 tokens.
    step = replace(STEP, shared_tokens=3)
    found = floor_of_step(TINY, GRPO, step, SECOND)
    assert found.prompts == 2 * 160 * 7
    assert found.learning == 3 * 2 * (160 * (2 * 11 + 3) + 40 * 24)
    assert floor_of_step(TINY, GRPO, replace(step, minibatches=2), SECOND).learning == 3 * 2 * (160 * 28 + 40 * 24)
    expected = sum(800 + 32 * (2 * 2 + 3 + 6 * position) for position in (1, 2, 3))
    assert floor_of_step(TINY, GRPO, step, READS).decoding == pytest.approx(expected)


def test_reads_by_hand() -> None:
    # Weights of 200 x 4 bytes, and 2 x 4 x 4 bytes of cache for each of 2 prompts' tokens and the rows' own.
    expected = sum(800 + 32 * (2 * 5 + 6 * position) for position in (1, 2, 3))
    assert floor_of_step(TINY, GRPO, STEP, READS).decoding == pytest.approx(expected)
    # Two rounds of rows read the weights twice.
    halves = StepShape(2, 3, 5, 4, max_rows=3, device="cpu")
    expected = sum(2 * (800 + 32 * (5 + 3 * position)) for position in (1, 2, 3))
    assert floor_of_step(TINY, GRPO, halves, READS).decoding == pytest.approx(expected)


def test_an_adapter_needs_no_gradient_of_the_weights_and_recomputing_one_more_pass() -> None:
    whole = floor_of_step(TINY, GRPO, STEP, SECOND).learning
    assert floor_of_step(TINY, Networks(lora_rank=2), STEP, SECOND).learning == pytest.approx(whole * 2 / 3)
    again = StepShape(2, 3, 5, 4, device="cpu", recompute=True)
    assert floor_of_step(TINY, GRPO, again, SECOND).learning == pytest.approx(whole * 4 / 3)


def test_one_token_is_given_by_the_prompt_alone() -> None:
    assert floor_of_step(TINY, GRPO, StepShape(2, 3, 5, 1, device="cpu"), SECOND).decoding == 0


def peak_of(shape: ModelShape, networks: Networks) -> Callable[[StepShape], int]:
    return lambda step: plan_memory(shape, networks, step).peak


@pytest.mark.parametrize("networks", [GRPO, PPO])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_next_larger_one_does_not_fit(networks: Networks, device: Literal["cpu", "cuda"]) -> None:
    shape, step = SHAPES["Qwen2.5-0.5B"], StepShape(4, 16, max_rows=64, dtype="bfloat16", device=device)

    def fits(**changes: int) -> bool:
        return plan_memory(shape, networks, replace(step, **changes)).peak <= memory

    memory = plan_memory(shape, networks, step).peak
    peak = peak_of(shape, networks)
    size, length = largest_group(step, memory, peak), longest_completion(step, memory, peak)
    assert size >= 16
    assert length >= 512
    assert [fits(group_size=count) for count in (size, size + 1)] == [True, size == MOST_COMPLETIONS]
    assert [fits(completion_tokens=count) for count in (length, length + 1)] == [True, False]


def test_nothing_fits_in_no_memory() -> None:
    assert largest_group(StepShape(), 80 << 30, peak_of(SHAPES["Llama-3.1-70B"], GRPO)) == 0
    assert longest_completion(StepShape(), 80 << 30, peak_of(SHAPES["Llama-3.1-70B"], GRPO)) == 0


# The pace of a run

EXAMPLES = ["demo", "task.examples=4", "evaluation.problems=10"]


def test_a_run_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two FLOPs a second where rows are few, four where they are many; 1000 bytes a second."""
    monkeypatch.setattr(time, "product_rate", lambda device, dtype, sizes: 2.0 if sizes == (6, 4, 8) else 4.0)
    settings = ["demo", "steps=10", "algorithm.kl_coef=0", "evaluation={problems: 3, samples: 1, every: 4}"]
    config = config_of(RunConfig, settings)
    step = StepShape(2, 3, 5, 4, device="cpu", shared_tokens=2)
    found = measured_pace(config, TINY, GRPO.__class__(reference=False), step, 1000.0, PromptSizes(5, 5, 2, 2))
    # Half as long is 2 tokens. Prompts of 2 x 3 + 2 tokens, then 1 or 3 decode steps of 6 rows.
    sampling = [2 * (160 * 8 + length * 200 * 6) / 2 / 0.9 for length in (1, 3)]
    # A group is 3 + 3 x 1 or 3 + 3 x 3 tokens; 28 bytes of each of the 212 weights are moved.
    learning = [
        3 * 2 * (160 * (2 * tokens + 2) + 40 * words) / 4 / 0.75 + 28 * 212 / 1000
        for tokens, words in ((6, 12), (12, 24))
    ]
    assert found.step == pytest.approx([sum(parts) for parts in zip(sampling, learning, strict=True)])
    assert found.sampling == pytest.approx(24 / sampling[1])
    assert found.learning == pytest.approx(26 / learning[1])
    # Two problems are held out, each with a greedy and a sampled completion.
    test = [2 * (160 * 8 + length * 200 * 4) / 2 / 0.9 for length in (1, 3)]
    assert (found.evaluation, found.evaluations) == (pytest.approx(test), 4)  # before, after 4 and 8, at the end
    assert found.seconds == pytest.approx([10 * one + 4 * other for one, other in zip(found.step, test, strict=True)])


@pytest.fixture(scope="module")
def counted() -> PromptSizes:
    found = prompt_sizes(config_of(RunConfig, EXAMPLES), say=pytest.fail)
    assert found is not None
    return found


@pytest.mark.usefixtures("quick")
def test_the_prompts_of_the_task_are_counted(counted: PromptSizes) -> None:
    config = config_of(RunConfig, EXAMPLES)
    tokenizer, task = load_tokenizer("abacus"), load_task(**config.task.model_dump())
    prompts = [prompt_token_ids(one, tokenizer, longest=1 << 20) for one in task.problems("train")[:64]]
    same = 0
    while len({prompt[same] for prompt in prompts}) == 1:
        same += 1
    assert counted.longest == max(map(len, prompts))
    assert same - 16 < counted.shared <= same
    assert counted.shared > 100
    plan = plan_run(config, prompt_tokens=counted.longest, available=1 << 40, sizes=counted)
    apart = plan_run(config, prompt_tokens=counted.longest, available=1 << 40)
    assert plan.memory.sampling < apart.memory.sampling
    assert plan.pace is not None
    assert len(plan.pace.step) == 2


def test_prompts_that_are_not_here_are_assumed(tmp_path: Path) -> None:
    said: list[str] = []
    assert prompt_sizes(config_of(RunConfig, ["demo", "task.name=gsm8k", f"task.path={tmp_path}"]), said.append) is None
    assert len(said) == 1
    assert said[0].startswith("Assuming prompts of 256 tokens, because they cannot be counted: ")
    assert prompt_sizes(config_of(RunConfig, ["demo", "model.path=Qwen2.5-7B"]), pytest.fail) is None


@pytest.mark.usefixtures("quick")
def test_plan_and_doctor_name_tokens_and_minutes(counted: PromptSizes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "prompt_sizes", lambda *_, **__: counted)
    for words, said in (
        (("plan", *EXAMPLES), ("of every prompt are read once", "This machine samples about ", " minutes: ")),
        (("doctor", "--model", "abacus"), ("samples about", "1,188,736 parameters")),
    ):
        ended = grouprl(*words)
        assert ended.code == 0, ended.err
        assert all(text in ended.text for text in said)
    assert grouprl("doctor", "--model", "nothing").code == 2


ABACUS = Path(models.__file__).parent / "assets" / "abacus"


def test_a_folder_a_name_and_a_hub_id() -> None:
    assert shape_of(str(ABACUS)) == SHAPES["abacus"] == shape_of("abacus")
    assert shape_of("abacus_chains").parameters == shape_of("abacus").parameters
    assert shape_of("Qwen/Qwen2.5-7B-Instruct") == SHAPES["Qwen2.5-7B"]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": False},
        {"model_type": "llama", "attention_bias": True, "tie_word_embeddings": True, "head_dim": 24},
        {"model_type": "qwen2", "num_key_value_heads": 1, "tie_word_embeddings": False},
    ],
)
def test_a_config_has_the_parameters_that_transformers_makes_of_it(tmp_path: Path, config: dict[str, object]) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"vocab_size": 50} | config))
    made: PretrainedConfig = AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    assert shape_of(str(tmp_path)).parameters == model.num_parameters()


@pytest.mark.parametrize(
    ("model", "config", "said"),
    [
        ("Qwen2.5-8B", None, "did you mean"),
        ("folder", {"hidden_size": 64}, "expected num_attention_heads"),
        ("folder", {"hidden_size": "64"}, "expected hidden_size, a whole number from 1, got '64'"),
        ("folder", {"num_experts": 8}, "expected a dense decoder, got num_experts=8"),
    ],
)
def test_what_has_no_shape_is_said(tmp_path: Path, model: str, config: dict[str, object] | None, said: str) -> None:
    if config is not None:
        model = str(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=said):
        shape_of(model)


SEVEN = SHAPES["Qwen2.5-7B"]
LARGE = StepShape(64, 8, 256, 512, dtype="bfloat16")
MIB = 1 << 20


def test_the_batch_is_divided_and_the_counts_of_a_rank_are_those_of_its_part():
    (whole, shards) = plan_layouts(SEVEN, GRPO, LARGE, 8, GPUS["H100"])
    part = replace(LARGE, problems=8)
    assert whole.memory == plan_memory(SEVEN, GRPO, part)
    assert (whole.layout.shard, shards.layout.shard) == (1, 8)
    assert plan_layouts(SEVEN, GRPO, LARGE, 1, GPUS["H100"])[0].memory == plan_memory(SEVEN, GRPO, LARGE)
    (_, across) = plan_layouts(SEVEN, GRPO, LARGE, 16, GPUS["H100"])
    assert across.layout == RankLayout(16, 8)  # the machines replicate


def test_shards_by_hand():
    plan = plan_layout(SEVEN, GRPO, LARGE, RankLayout(8, 8), GPUS["H100"])
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
    layout, gpu, step = RankLayout(8, 8), GPUS["A100"], replace(LARGE, recompute=True)
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
        plan = memory_of_rank(shape_of(str(place.model)), GRPO, LARGE, RankLayout(ranks, ranks)).networks
        for part, size in (("policy", plan.policy), ("reference", plan.reference), ("optimizer", plan.moments)):
            assert held[part] == pytest.approx(size / MIB, rel=0.02), part


GIB = 1 << 30


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two GPUs of 80 GiB, of which 60 are free; the list grows with every wait for the device."""
    called: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    found = SimpleNamespace(name="a GPU", total_memory=80 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: called.append("wait"))
    monkeypatch.setitem(machine._ROWS, "cuda", (8, 8, 8))
    monkeypatch.setitem(machine._BLOCKS, "cuda", (1 << 10, 1 << 12))
    monkeypatch.setattr(machine, "_SECONDS", 0.0)
    with pretend_gpu(monkeypatch):
        yield called


def test_memory_and_rates(waits: list[str]):
    assert (machine.total_memory("cuda"), machine.free_memory("cuda")) == (80 * GIB, 60 * GIB)
    assert machine.total_memory("cpu") != 80 * GIB
    assert machine.product_rate("cuda", "bfloat16") > 0
    assert machine.read_rate("cuda", 1 << 12) > 0
    # Two rates, of at least two measurements each, with a wait before the clock starts and one before it stops.
    assert len(waits) >= 8


def test_the_doctor_lists_every_gpu(waits: list[str]):
    found = {finding.name: finding for finding in (*doctor._devices(), *doctor._room())}
    assert [found[f"cuda:{index}"].found for index in (0, 1)] == ["a GPU, 80.0 GiB"] * 2
    assert "GFLOP/s" in found["cuda bfloat16"].found
    assert found["GPU memory"].found == "60.0 of 80.0 GiB free"
    assert "cuda" not in found


@pytest.mark.usefixtures("waits")
def test_auto_is_the_first_gpu_and_a_record_names_it():
    assert machine_facts(GPU)["device"] == "a GPU"
    found = [str(resolve_device(name)) for name in ("auto", "cuda", "cuda:1", "cpu")]
    assert found == ["cuda", "cuda", "cuda:1", "cpu"]
    with pytest.raises(UserError, match=r"model\.device: expected a GPU 'cuda:2', found 2"):
        resolve_device("cuda:2")


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(UserError, match=r"expected a GPU '.*', found 0: use model\.device=auto or cpu"):
            resolve_device(name)
