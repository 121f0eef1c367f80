"""Whole runs: what they leave behind, how they stop, and that a break cannot be seen in anything they made."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from forked import command, forked
from grouprl import Trainer, UserError
from grouprl.config.run import RunConfig, load_config
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_run
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.resolve import REWARDS
from grouprl.tasks import task_from_list
from grouprl.tasks.held_out import trained_on_the_rest
from grouprl.trainer.verdict import verdict
from letter_rewards import InProcess
from small_runs import (
    LETTERS,
    ROWS,
    assert_same_run,
    checkpoint_names,
    grouprl,
    gsm8k_row,
    metrics,
    rollouts,
    small_config,
    small_run,
    small_settings,
    write_rows,
)
from variants import variant

# Everything with a state of its own: moments, warm-up, weight decay, several updates a step, no reference.
STATEFUL: dict[str, Any] = {
    "algorithm": variant(passes=2, kl_coef=0.0, scale="none", entropy_target=9.0),
    "learner": {"learning_rate": 0.01, "warmup_steps": 8, "weight_decay": 0.1},
}


@pytest.fixture(scope="module")
def straight(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps without a break, saved after each second one."""
    config = small_config(tmp_path_factory.mktemp("straight"), checkpoint={"every": 2, "keep": 9})
    return small_run(tiny, config).directory


def test_a_run_records_one_set_of_problems_through_training(straight: Path, tiny: Path, tmp_path: Path) -> None:
    """After step 5 the policy completes them as a run of five steps does at its end."""
    found = json.loads((straight / "examples.json").read_text())
    assert found.pop("run")
    assert list(found) == ["before", "step 1", "step 5", "after"]
    problems = [[one["problem_id"] for one in rows] for rows in found.values()]
    assert len(problems[0]) == 3
    assert problems == [problems[0]] * 4
    shorter = small_run(tiny, small_config(tmp_path, steps=5)).directory
    other = json.loads((shorter / "examples.json").read_text())
    assert other["after"] == other["step 5"] == found["step 5"] != found["before"]


def test_a_run_leaves_what_its_summary_says(straight: Path) -> None:
    summary = json.loads((straight / "summary.json").read_text())
    assert {"before", "after", "train_seconds", "steps", "seed", "peak_rss_mib", "completion_tokens"} <= set(summary)
    for when in ("before", "after"):
        own = {f"{name}{end}" for name in ("reward", "rewards/letters/mean") for end in ("", "_interval")}
        assert set(summary[when]) == {"worked_share", "mean_length", "problems", *own}  # nothing says what is correct
    assert summary["steps"] == 6
    assert [row["step"] for row in metrics(straight)] == [1, 2, 3, 4, 5, 6]
    lengths = rollouts(straight, "SELECT step, COUNT(*), SUM(length) FROM completions GROUP BY step")
    assert [count for _, count, _ in lengths] == [8] * 6
    assert [tokens for *_, tokens in lengths] == [row["completion_tokens"] for row in metrics(straight)]
    assert summary["completion_tokens"] == sum(tokens for *_, tokens in lengths)
    assert summary["train_seconds"] < summary["total_seconds"]
    assert (straight / "report.html").stat().st_size > 10_000


def test_the_recorded_rewards_and_advantages_are_those_of_the_recorded_texts(straight: Path) -> None:
    query = "SELECT step, group_index, text, reward, advantage FROM completions ORDER BY 1, 2, completion_index"
    rows = rollouts(straight, query)
    for start in range(0, len(rows), 4):
        group = rows[start : start + 4]
        rewards = [sum(c in "abcdefghijklmnopqrstuvwxyz" for c in text) / max(1, len(text)) for _, _, text, *_ in group]
        assert [row[3] for row in group] == pytest.approx(rewards)
        mean = sum(rewards) / 4
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / 4)
        assert [row[4] for row in group] == pytest.approx([(r - mean) / deviation for r in rewards], abs=1e-3)


def test_recorded_log_probs_are_those_of_the_checkpoint_that_sampled(straight: Path) -> None:
    import numpy as np

    model = AutoModelForCausalLM.from_pretrained(straight / "checkpoints/step-000004", dtype=torch.float32)
    query = (
        "SELECT prompt_ids, token_ids, logprobs, plain_logprobs FROM completions JOIN problems USING (problem_id) "
        "WHERE step = 5"
    )
    for prompt, tokens, *recorded in rollouts(straight, query):
        prompt_ids, token_ids = (np.frombuffer(blob, "<i4").tolist() for blob in (prompt, tokens))
        with torch.no_grad():
            logits_SV = model(torch.tensor([prompt_ids + token_ids])).logits[0]
        expected_SV = logits_SV.double().log_softmax(-1)[len(prompt_ids) - 1 : -1]
        expected_T = expected_SV[range(len(token_ids)), token_ids]
        for blob in recorded:  # nothing is cut and the temperature is 1, so both are the plain softmax
            torch.testing.assert_close(
                torch.tensor(np.frombuffer(blob, "<f4").copy()).double(), expected_T, atol=1e-5, rtol=0
            )


def test_one_and_two_steps_with_a_stateful_optimizer_are_three(tiny: Path, tmp_path: Path) -> None:
    whole = small_run(tiny, small_config(tmp_path, "whole", **{**STATEFUL, "steps": 3})).directory
    small_run(tiny, small_config(tmp_path, "parts", **{**STATEFUL, "steps": 1}))
    parts = small_run(tiny, small_config(tmp_path, "parts", **{**STATEFUL, "steps": 3}), resume=True).directory
    assert_same_run(whole, parts, step=3)


def equal_in_step_two(completions: list[str], trainer_state: Any, **columns: Any) -> list[float]:
    return [0.5 if trainer_state.global_step == 1 else len(set(text)) / 8 for text in completions]


def test_the_learning_rate_follows_the_steps_through_one_without_signal_and_a_kill(tiny: Path, tmp_path: Path) -> None:
    changes = {"steps": 4, "learner": {"learning_rate": 0.01, "schedule": "linear"}, "algorithm": variant(kl_coef=0.0)}
    config = small_config(tmp_path, **changes, checkpoint={"every": 1, "keep": 9})
    whole = Trainer(tiny, ROWS, [equal_in_step_two], config=config).train().directory
    rates = [row.get("learning_rate") for row in metrics(whole)]
    assert [rates[0], *rates[2:]] == pytest.approx([0.01, 0.005, 0.0025])
    weights = (whole / "checkpoints/step-000004/model.safetensors").read_bytes()
    (whole / "summary.json").unlink()  # as a kill leaves it
    more = config.model_copy(update={"steps": 6})
    with pytest.raises(UserError, match="steps: 4 then, 6 now"):
        Trainer(tiny, ROWS, [equal_in_step_two], config=more).train(resume=True)
    Trainer(tiny, ROWS, [equal_in_step_two], config=config).train(resume=True, step=2)
    assert [row.get("learning_rate") for row in metrics(whole)] == rates
    assert (whole / "checkpoints/step-000004/model.safetensors").read_bytes() == weights


def test_epochs_end_after_the_last_problem(tiny: Path, tmp_path: Path) -> None:
    task = task_from_list([{"prompt": f"Say {number}."} for number in range(8)])
    problems = len(trained_on_the_rest(task, "test").problems("train"))
    config = RunConfig(**{**dict(small_config(tmp_path)), "steps": 100, "epochs": 1.0})
    directory = Trainer(tiny, task, [LETTERS], config=config).train().directory
    assert len(metrics(directory)) == math.ceil(problems / 2)  # two problems in a step
    assert len(rollouts(directory, "SELECT DISTINCT problem_id FROM completions")) == problems


def test_a_run_of_another_seed_is_another_run(straight: Path, tiny: Path, tmp_path: Path) -> None:
    other = small_run(tiny, small_config(tmp_path, seed=1, steps=1)).directory
    ids = "SELECT token_ids FROM completions WHERE step = 1"
    assert rollouts(other, ids) != rollouts(straight, ids)


def test_the_first_ctrl_c_saves_and_the_run_goes_on_as_if_there_had_been_none(
    straight: Path, tiny: Path, tmp_path: Path
) -> None:
    interrupted = InProcess(lambda calls: calls == 6 and signal.raise_signal(signal.SIGINT))
    config = small_config(tmp_path)
    stopped = Trainer(tiny, ROWS, [WeightedReward("letters", interrupted)], config=config).train()
    assert not stopped.finished
    assert interrupted.calls == 6  # two of the evaluation before, one of the examples after step 1
    assert stopped.summary["steps"] == 3
    assert "after" not in stopped.summary
    assert checkpoint_names(stopped.directory) == ["step-000003"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finished = small_run(tiny, config, resume=True)
    assert finished.finished
    assert_same_run(straight, finished.directory)


def test_a_stop_before_the_first_step_leaves_something_to_resume(tiny: Path, tmp_path: Path) -> None:
    def judged(name: str, judging: InProcess, **more: Any) -> Any:
        task = replace(task_from_list(ROWS), verifier="judging", own_rewards={"judging": judging})
        return Trainer(tiny, task, [LETTERS], config=small_config(tmp_path, name, steps=2)).train(**more)

    stopped = judged("run", InProcess(lambda calls: calls == 1 and signal.raise_signal(signal.SIGINT)))
    assert (stopped.finished, stopped.summary["steps"]) == (False, 0)
    resumed = judged("run", InProcess(lambda calls: None), resume=True)
    straight = judged("straight", InProcess(lambda calls: None))
    assert_same_run(straight.directory, resumed.directory, step=2)


def no_memory(record: Any) -> None:
    if record.step == 2:
        raise MemoryError("of step 2")


def test_a_failed_run_says_why_until_it_is_resumed(straight: Path, tiny: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with pytest.raises(MemoryError):
        Trainer(tiny, ROWS, [LETTERS], config=config, callback=no_memory).train()
    run, frame = tmp_path / "run", f"{__file__}:{no_memory.__code__.co_firstlineno + 2}"
    summary = json.loads((run / "summary.json").read_text())
    assert summary.pop("run")
    assert summary == {"state": "failed", "reason": "MemoryError: of step 2", "step": 2, "frame": frame}
    assert verdict(read_run(run)) == f"Failed in step 2: MemoryError: of step 2 ({frame})"
    assert RunDirectory(run).status(summary, 6) == "failed"
    finished = small_run(tiny, config, resume=True)
    assert finished.summary["state"] == "finished"
    assert_same_run(straight, finished.directory)


def test_a_reward_that_always_raises_is_named_by_summary_and_page(tiny: Path, tmp_path: Path) -> None:
    code = tmp_path / "fail.py"
    code.write_text("def f(completions, **columns):\n    raise ValueError('no such table')\n")
    data = write_rows(tmp_path / "data.jsonl", [gsm8k_row(n) for n in range(30)])
    settings = small_settings(tmp_path, steps=1, evaluation={"problems": 0})
    settings += ["task.name=gsm8k", f"task.path={data}", "--reward", f"{code}:f"]
    for _ in range(2):  # a run that recorded nothing is in nobody's way
        assert grouprl("train", "--model", tiny, *settings).code == 2
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert (summary["state"], summary["step"], summary["frame"]) == ("failed", 1, "fail.py:2")
        assert "f raised ValueError: no such table (fail.py:2) (8 times)" in summary["reason"]
    assert "Failed in step 1: rewards: expected valid" in grouprl("report", tmp_path / "run").text
    page = (tmp_path / "run" / "report.html").read_text()
    assert "no such table (fail.py:2)" in page
    assert '"status":"failed"' in page.replace(": ", ":")
    code.write_text("def f(completions, **columns):\n    return [float(len(text)) for text in completions]\n")
    resumed = grouprl("train", "--resume", f"runs_dir={tmp_path}", "--trust-code", code)
    assert resumed.code == 0, resumed.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["state"] == "finished"


def test_a_stop_in_an_evaluation_loses_nothing(tiny: Path, tmp_path: Path) -> None:
    """Before, in between, and after; in this process, an evaluation judges its greedy and its sampled completions."""

    def judged(press: Any, name: str, **more: Any) -> Any:
        task = replace(task_from_list(ROWS), verifier="judging", own_rewards={"judging": InProcess(press)})
        config = small_config(tmp_path, name, steps=4, evaluation={"every": 2, "problems": 3, "samples": 2})
        return Trainer(tiny, task, [LETTERS], config=config).train(**more)

    straight = judged(lambda _: None, "straight")
    for call in (1, 4, 6):
        name = f"stopped in {call}".replace(" ", "-")
        stopped = judged(lambda calls, call=call: calls == call and signal.raise_signal(signal.SIGTERM), name)
        assert (stopped.finished, stopped.summary["state"]) == (False, "stopped")
        resumed = judged(lambda _: None, name, resume=True)
        assert resumed.finished
        assert_same_run(straight.directory, resumed.directory, step=4)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("verb", ["train", "compare", "eval"])
def test_a_signal_in_a_long_evaluation_ends_each_verb_soon(
    verb: str, number: signal.Signals, tiny: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "data.jsonl", [gsm8k_row(n) for n in range(300)])
    settings = [f"task.path={data}", *small_settings(tmp_path, evaluation={"problems": 200, "samples": 256})]
    settings = [*settings, "task.name=gsm8k", "rollout.max_tokens=100", "rollout.max_rows=64"]
    words = {
        "train": ("train", "--model", tiny, *settings),
        "compare": ("compare", "demo", f"model={tiny}", *settings, "--vary", "algorithm=grpo,rloo", "--seeds", "1"),
        "eval": ("eval", tiny, *settings),
    }
    with forked(command(*words[verb])) as child:
        started = cpu_seconds(child.pid)
        for _ in range(100):
            if cpu_seconds(child.pid) > started + 3 or any(tmp_path.glob("*/*/console.txt")):
                break
            time.sleep(0.1)
        time.sleep(8 * (verb == "compare"))
        began = time.monotonic()
        os.kill(child.pid, number)
        code = child.wait(30)
        assert code == (-number if (verb, number) == ("eval", signal.SIGTERM) else 130), child.err.read()
        assert time.monotonic() - began < 10  # 5 s on an idle machine
        assert "Traceback" not in child.err.read()


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_two_ctrl_c_end_the_command_at_once(tiny: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", [gsm8k_row(n) for n in range(30)])
    # One step of minutes, so that nothing but the second signal can end it soon.
    endless = {"problems_per_step": 500, "group_size": 64, "max_tokens": 150}
    settings = small_settings(tmp_path, rollout=endless, evaluation={"problems": 1, "samples": 1}, name="run")
    with forked(command("train", "--model", tiny, "task.name=gsm8k", f"task.path={data}", *settings)) as child:
        assert any(line.split()[:2] == ["step", "reward"] for line in child.out)
        # A signal before the first step saves step 0. A second of work after the heading is inside that step.
        heading = cpu_seconds(child.pid)
        while cpu_seconds(child.pid) < heading + 1:
            time.sleep(0.05)
        os.kill(child.pid, signal.SIGINT)
        assert any("Stopping after this step is saved. Press Ctrl-C again" in line for line in child.out)
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(20) == 130
        assert "Traceback" not in child.err.read()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_one_ctrl_c_ends_the_command_with_130_and_says_how_to_go_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressing = InProcess(lambda calls: calls == 3 and signal.raise_signal(signal.SIGINT))  # after the evaluation
    data = write_rows(tmp_path / "data.jsonl", [gsm8k_row(n) for n in range(30)])
    task = ["task.name=gsm8k", f"task.path={data}", 'rewards=[{"name": "letters"}]']
    settings = [*small_settings(tmp_path, steps=2), *task]
    monkeypatch.setitem(REWARDS.own, "letters", pressing)
    stopped = grouprl("train", "--model", tiny, *settings)
    assert stopped.code == 130
    assert "Stopped after step 1 of 2. Continue with --resume." in stopped.text
    monkeypatch.setitem(REWARDS.own, "letters", InProcess(lambda calls: None))
    assert grouprl("train", "--resume", f"runs_dir={tmp_path}").code == 0
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2]


def test_evaluations_and_checkpoints_come_when_they_are_due(tiny: Path, tmp_path: Path) -> None:
    config = small_config(
        tmp_path, steps=4, evaluation={"every": 2, "problems": 2, "samples": 0}, checkpoint={"every": 1, "keep": 3}
    )
    directory = small_run(tiny, config).directory
    rows = [json.loads(line) for line in (directory / "evaluations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert checkpoint_names(directory) == ["step-000002", "step-000003", "step-000004"]


def test_a_resumed_run_may_be_judged_in_another_way(tiny: Path, tmp_path: Path) -> None:
    task = replace(task_from_list(ROWS), verifier="judging", own_rewards={"judging": InProcess(lambda calls: None)})
    Trainer(tiny, task, [LETTERS], config=small_config(tmp_path, steps=1)).train()
    config = small_config(tmp_path, steps=2, evaluation={"problems": 2, "samples": 3})
    longer = Trainer(tiny, task, [LETTERS], config=config).train(resume=True)
    assert "pass_at_3" not in longer.summary["before"]
    assert "pass_at_3" in longer.summary["after"]
    # The record has the settings that the run continued with.
    recorded = load_config(RunConfig, [longer.directory / "config.yaml"], [])
    assert (recorded.steps, recorded.evaluation) == (2, config.evaluation)


def test_a_policy_learns_what_its_reward_asks_for(tiny: Path, tmp_path: Path) -> None:
    def even_tokens(completion_ids: list[list[int]], **keywords: Any) -> list[float]:
        return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]

    config = small_config(
        tmp_path, steps=25, rollout={"problems_per_step": 8, "group_size": 8, "max_tokens": 8}, checkpoint={"every": 0}
    )
    Trainer(tiny, ROWS, [even_tokens], config=config).train()
    means = [row["reward"] for row in metrics(tmp_path / "run")]
    assert 0.4 < sum(means[:3]) / 3 < 0.6  # half of the tokens are even
    assert sum(means[-3:]) / 3 > 0.85
    gaps = [row["sampler_learner_gap"] for row in metrics(tmp_path / "run")]
    assert max(gaps) < 1e-4


def test_a_run_is_the_same_on_any_number_of_threads(tiny: Path, tmp_path: Path) -> None:
    before, changes = torch.get_num_threads(), {"learner": {"learning_rate": 0.01, "micro_batch_tokens": 150}}
    changes |= {"steps": 2, "rollout": {"problems_per_step": 6, "group_size": 8, "max_tokens": 12}}
    try:
        for count in (1, 3):
            small_run(tiny, small_config(tmp_path, str(count), model={"threads": count}, **changes), "ppo")
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert_same_run(tmp_path / "1", tmp_path / "3", step=2)
