"""The estimate of a run's time by hand, and the prompts that it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.config.command_line import config_of
from grouprl.config.run import RunConfig
from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.tasks import load_task
from grouprl.tools.planner import GRPO, ModelShape, StepShape, machine, time
from grouprl.tools.planner.screen import plan_run
from grouprl.tools.planner.time import PromptSizes, measured_pace, prompt_sizes
from small_runs import grouprl

# 160 weights in layers, 40 in the vocabulary, 12 in norms: see test_time.py.
TINY = ModelShape("tiny", 1, 4, 1, 1, 4, 8, 10, tied=True)
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


def test_the_prompts_of_the_task_are_counted() -> None:
    config = config_of(RunConfig, EXAMPLES)
    found = prompt_sizes(config, say=pytest.fail)
    assert found is not None
    tokenizer, task = load_tokenizer("abacus"), load_task(**config.task.model_dump())
    prompts = [prompt_token_ids(one, tokenizer, longest=1 << 20) for one in task.problems("train")[:64]]
    same = 0
    while len({prompt[same] for prompt in prompts}) == 1:
        same += 1
    assert found.longest == max(map(len, prompts))
    assert same - 16 < found.shared <= same
    assert found.shared > 100
    plan = plan_run(config, prompt_tokens=found.longest, available=1 << 40, rates=None, sizes=found)
    apart = plan_run(config, prompt_tokens=found.longest, available=1 << 40, rates=plan.rates)
    assert plan.memory.sampling < apart.memory.sampling
    assert plan.time is not None
    assert apart.time is not None
    assert plan.time.learning < apart.time.learning
    assert (plan.pace is None, apart.pace) == (False, None)


def test_prompts_that_are_not_here_are_assumed(tmp_path: Path) -> None:
    said: list[str] = []
    assert prompt_sizes(config_of(RunConfig, ["demo", "task.name=gsm8k", f"task.path={tmp_path}"]), said.append) is None
    assert len(said) == 1
    assert said[0].startswith("Assuming prompts of 256 tokens, because they cannot be counted: ")
    assert prompt_sizes(config_of(RunConfig, ["demo", "model.path=Qwen2.5-7B"]), pytest.fail) is None


def test_plan_and_doctor_name_tokens_a_second_and_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_SECONDS", 0.0)
    planned: Any = grouprl("plan", *EXAMPLES)
    assert planned.code == 0, planned.err
    words = " ".join(planned.out.split())
    assert "of every prompt are read once" in words
    assert "This machine samples about " in words
    assert " minutes: " in words
    found: Any = grouprl("doctor", "--model", "abacus")
    assert found.code == 0, found.err
    assert "samples about" in " ".join(found.out.split())
    assert "1,188,736 parameters" in " ".join(found.out.split())
    wrong: Any = grouprl("doctor", "--model", "nothing")
    assert wrong.code == 2
