"""The time of a step, as a floor counted by hand and as measured rates give it; prompts that are counted; what fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from grouprl.config.command_line import config_of
from grouprl.config.run import RunConfig
from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.tasks import load_task
from grouprl.tools.planner import GRPO, PPO, SHAPES, ModelShape, Networks, StepShape, plan_memory, time
from grouprl.tools.planner.fits import MOST_COMPLETIONS, largest_group, longest_completion
from grouprl.tools.planner.machine import Rates
from grouprl.tools.planner.screen import plan_run
from grouprl.tools.planner.time import PromptSizes, floor_of_step, measured_pace, prompt_sizes
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
def test_plan_and_doctor_name_tokens_a_second_and_minutes(
    counted: PromptSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "prompt_sizes", lambda *_, **__: counted)
    for words, said in (
        (("plan", *EXAMPLES), ("of every prompt are read once", "This machine samples about ", " minutes: ")),
        (("doctor", "--model", "abacus"), ("samples about", "1,188,736 parameters")),
    ):
        ended = grouprl(*words)
        assert ended.code == 0, ended.err
        assert all(text in ended.text for text in said)
    assert grouprl("doctor", "--model", "nothing").code == 2
