"""The Python way in: a user's own problems, rewards and algorithm, and what happens when a reward is wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grouprl import Problem, Run, Trainer, UserError
from grouprl.kernels import build
from grouprl.models.load import fingerprint, load_model, load_tokenizer
from grouprl.models.manifest import MANIFEST
from grouprl.rewards import built_in
from grouprl.tasks import task_from_list
from small_runs import LETTERS, ROWS, SMALL, metrics, rollouts, small_config, tree
from tiny import tiny_model_folder
from variants import variant

CHAT = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def train(tiny: Path, tmp_path: Path, *rewards: Any, task: Any = ROWS, **changes: Any) -> Run:
    trained = {"rewards": list(rewards), "algorithm": None} | changes
    config = small_config(tmp_path, steps=2, evaluation={"problems": 0})
    return Trainer(tiny, task, trained["rewards"], trained["algorithm"], config).train()


def noting(path: Path) -> Callable[..., list[float]]:
    """A reward that writes down what it is called with."""

    def spy(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        columns = {name: values for name, values in columns.items() if isinstance(values, list)}
        with path.open("a") as file:
            print(json.dumps({"prompts": prompts, "completions": completions, **columns}), file=file)
        return [float(len(str(completion))) for completion in completions]

    return spy


def noted(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_chat_prompts_give_chat_completions_and_go_through_the_template(tiny: Path, tmp_path: Path) -> None:
    directory = train(tiny, tmp_path, noting(tmp_path / "calls"), task=CHAT).directory
    calls = [call for call in noted(tmp_path / "calls") if len(call["prompts"]) == 4]  # groups, not held out
    seen = [pair for call in calls for pair in zip(call["prompts"], call["completions"], strict=True)]
    assert len(seen) == 16
    for prompt, completion in seen:
        assert re.fullmatch(r"Say \d+\.", prompt[0]["content"])
        assert completion == [{"role": "assistant", "content": completion[0]["content"]}]
    tokenizer = load_tokenizer(str(tiny))
    for prompt_ids, prompt in rollouts(directory, "SELECT prompt_ids, prompt FROM problems"):
        assert tokenizer.decode(np.frombuffer(prompt_ids, "<i4").tolist()) == f"<|user|>{prompt}<|assistant|>"


def test_chat_prompts_need_a_template_and_plain_ones_do_not(tmp_path: Path) -> None:
    model = tiny_model_folder(tmp_path, chat_template=False)
    with pytest.raises(UserError, match="its prompt is chat messages, and the model's tokenizer has no chat template"):
        train(model, tmp_path / "runs", LETTERS, task=CHAT)
    assert not (tmp_path / "runs").exists()
    assert train(model, tmp_path / "runs", LETTERS).finished


class Alternating:
    """A user's own task object: the protocol and nothing else."""

    name = "alternating"
    default_rewards = {"boxed_format": 1.0}  # noqa: RUF012
    verifier = "odd"

    @property
    def own_rewards(self) -> dict[str, Any]:
        return {"odd": lambda prompts, **_: [float(prompt.endswith(("1", "3"))) for prompt in prompts]}

    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(f"{split}-{n}", f"{split} {n}") for n in range(4)]

    def traits(self, text: str) -> dict[str, bool]:
        return {"loud": text.isupper(), "any": True}


def test_a_task_object_with_its_default_rewards(tiny: Path, tmp_path: Path) -> None:
    run = Trainer(tiny, Alternating(), config=small_config(tmp_path, steps=1, evaluation={"problems": 4})).train()
    after = run.summary["after"]
    assert (after["greedy_accuracy"], after["pass_at_8"], after["any_share"]) == (0.5, 0.5, 1.0)
    assert "rewards/boxed_format/mean" in metrics(run.directory)[0]
    assert "rewards/odd/mean" not in metrics(run.directory)[0]
    odd = "SELECT DISTINCT correct, substr(prompt, -1) IN ('1', '3') FROM completions JOIN problems USING (problem_id)"
    assert all(correct == expected for correct, expected in rollouts(run.directory, odd))
    assert run.summary["task"] == "alternating"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": "gropo"}, r"algorithm: expected one of .*grpo.*, got 'gropo': did you mean 'grpo'\?"),
        ({"task": 7}, r"task: expected .*rows such as"),
        ({"task": []}, r"expected a list of rows such as .*, got none: add problems"),
        (
            {"task": [{"question": "2 + 2"}]},
            r"expected a column 'prompt', got question: name .* with task=task_from_list\(rows, prompt_column=NAME",
        ),
        ({"rewards": ["boxed"]}, r"rewards: expected one of boxed_format, .*, got 'boxed'"),
        ({"rewards": []}, r"rewards: expected a list such as .*, got \[\]: name at least one"),
        ({"rewards": None}, r"rewards: expected at least one, but the task list has no default"),
    ],
    ids=["algorithm", "no task", "no rows", "no prompt", "reward", "no reward", "no default"],
)
def test_what_cannot_be_trained_is_a_sentence(
    tiny: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        train(tiny, tmp_path, **{"rewards": [LETTERS], **changes})
    assert tree(tmp_path) == {}


def test_a_config_and_a_callback_of_another_kind_are_refused() -> None:
    with pytest.raises(UserError, match=r"config: expected a RunConfig, got dict: write RunConfig\(steps=100\)"):
        Trainer(config={"steps": 1})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"callback: expected a function of a StepRecord, got int"):
        Trainer(callback=3)  # type: ignore[arg-type]


def test_a_single_reward_needs_no_list_and_knows_the_epoch(tiny: Path, tmp_path: Path) -> None:
    """Two problems a step of 6 train problems: the third step begins after two thirds of the first epoch."""

    def epochs(completions: list[str], trainer_state: Any, log_metric: Any, **_: Any) -> list[float]:
        log_metric("epoch", trainer_state.epoch)
        return [float(len(text)) for text in completions]

    task = task_from_list(ROWS[:6], test=ROWS[6:8], validation=ROWS[8:10])
    config = small_config(tmp_path, steps=3, rollout={"problems_per_step": 2, "group_size": 2, "max_tokens": 8})
    run = Trainer(tiny, task, epochs, config=config).train()
    assert [row["reward_logs/epoch"] for row in metrics(run.directory)] == pytest.approx([0, 1 / 3, 2 / 3])


def test_none_for_every_completion_trains_nothing(tiny: Path, tmp_path: Path) -> None:
    def silent(completions: list[str], **keywords: Any) -> list[None]:
        return [None] * len(completions)

    with pytest.raises(UserError, match="no reward applies"):
        train(tiny, tmp_path / "refused", silent)
    config = small_config(tmp_path, steps=2, rollout={**SMALL["rollout"], "scoring": {"max_invalid": 1.0}})
    run = Trainer(tiny, ROWS, [silent], variant(kl_coef=0.0), config).train()
    query = "SELECT DISTINCT reward, invalid_reason, advantage FROM completions"
    assert rollouts(run.directory, query) == [(None, "no reward applies", 0.0)]
    for row in metrics(run.directory):
        assert (row["reward"], row["frac_invalid"], row["frac_reward_zero_std"], row["grad_norm"]) == (None, 1, 1, 0)
    weights = (run.directory / "checkpoints/step-000002/model.safetensors").read_bytes()
    assert weights[-1000:] == (tiny / "model.safetensors").read_bytes()[-1000:]


def test_plain_prompts_for_a_chat_model_are_warned_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny, tmp_path / "plain", LETTERS)
    assert "Warning: the model has a chat template, but plain-text prompts" in capsys.readouterr().out
    train(tiny, tmp_path / "chat", LETTERS, task=CHAT)
    assert "Warning" not in capsys.readouterr().out


@pytest.mark.parametrize(("setting", "warned"), [("", 1), ("off", 0)])
def test_a_missing_compiler_is_warned_of_once_with_its_cost(
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    warned: int,
) -> None:
    monkeypatch.setenv("GROUPRL_KERNELS", setting)
    monkeypatch.setattr(build, "_compiler", lambda: None)
    build.library.cache_clear()
    build.library_file.cache_clear()
    try:
        Trainer(tiny, ROWS, [LETTERS], config=small_config(tmp_path, steps=1, evaluation={"problems": 0})).train()
    finally:
        monkeypatch.undo()
        build.library.cache_clear()
        build.library_file.cache_clear()
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("no C compiler") == said.count("1.3 to 3 times as long") == warned


def test_products_in_software_are_warned_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for capability, warned in (("AVX2", True), ("AVX512", False)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        model = {"path": str(tiny), "dtype": "bfloat16"}
        config = small_config(tmp_path, capability, steps=1, model=model, evaluation={"problems": 0})
        Trainer(tiny, ROWS, [LETTERS], config=config).train()
        assert ("emulates bfloat16" in " ".join(capsys.readouterr().out.split())) == warned


def test_the_model_is_saved_without_the_state_of_its_run(tiny: Path, tmp_path: Path) -> None:
    trainer = Trainer(tiny, ROWS, [LETTERS], config=small_config(tmp_path, steps=1, evaluation={"problems": 0}))
    with pytest.raises(UserError, match=r"expected a run with a checkpoint, got none: call train\(\) first"):
        trainer.save(tmp_path / "early")
    run = trainer.train()
    assert run.checkpoint == run.directory / "checkpoints" / "step-000001"
    saved = trainer.save(tmp_path / "saved")
    assert {path.name for path in saved.iterdir()} == {
        path.name for path in run.checkpoint.iterdir() if path.name not in ("trainer", MANIFEST)
    }
    ours, theirs = (load_model(str(folder), device=torch.device("cpu")) for folder in (run.checkpoint, saved))
    assert fingerprint(ours) == fingerprint(theirs)
    with pytest.raises(UserError, match="expected a new or empty folder"):
        trainer.save(saved)


def test_a_script_shows_one_sentence_for_a_mistake_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(UserError) as caught:
        Trainer(task="nope", config=small_config(tmp_path)).train()
    with pytest.raises(SystemExit, match="2"):
        sys.excepthook(UserError, caught.value, caught.tb)
    assert capfd.readouterr().err == f"error: {caught.value}\n"
    sys.excepthook(ZeroDivisionError, ZeroDivisionError("mine"), caught.tb)  # what is not the user's
    assert capfd.readouterr().err.startswith("Traceback")


def test_a_run_is_measured_by_its_own_reward_and_not_by_a_verifier_that_nobody_asked_for(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"Say {n}.", "answer": "7"} for n in range(40)]  # its verifier is correct_answer

    def letters(completions: list[str], **columns: Any) -> list[float]:
        return [sum(map(str.isalpha, text)) / max(1, len(text)) for text in completions]

    run = Trainer(tiny, rows, [letters], config=small_config(tmp_path, steps=2)).train()
    shown = " ".join(capsys.readouterr().out.split())
    assert "correct" not in shown
    assert "Mean reward" in shown
    before, after, change = (run.summary[name] for name in ("before", "after", "change"))
    assert run.summary["measure"] == "reward"
    assert change["reward"]["mean"] == pytest.approx(after["reward"] - before["reward"])
    low, high = change["reward"]["interval"]
    assert low < change["reward"]["mean"] < high
    assert "greedy_accuracy" not in after
    assert "accuracy" not in run.metrics().names
    assert rollouts(run.directory, "SELECT DISTINCT correct FROM completions") == [(None,)]
    examples = json.loads((run.directory / "examples.json").read_text())["after"]
    assert all(one["correct"] is None and one["reward"] is not None for one in examples)
    # With the verifier as a reward of weight 0 somebody asked for it; the run's own reward stays the measure.
    asked = [letters, built_in("correct_answer", weight=0.0)]
    both = Trainer(tiny, rows, asked, config=small_config(tmp_path, "both", steps=1)).train().summary
    assert (both["measure"], both["after"]["greedy_accuracy"]) == ("reward", 0.0)
    judged = Trainer(tiny, rows, ["correct_answer"], config=small_config(tmp_path, "judged", steps=1)).train().summary
    assert judged["measure"] == "greedy_accuracy"
    assert "Greedy accuracy 0.0%" in capsys.readouterr().out
