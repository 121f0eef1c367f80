"""The Python way in: a user's own problems, rewards and algorithm, and what happens when a reward is wrong."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grouprl import Algorithm, Problem, Run, Trainer, UserError, WeightedReward
from grouprl.config.run import RunConfig, load_config
from grouprl.kernels import build
from grouprl.models.load import fingerprint, load_model, load_tokenizer
from grouprl.models.manifest import MANIFEST
from grouprl.rewards import built_in
from grouprl.tasks import task_from_list
from letter_rewards import letters
from small_runs import ROWS, SMALL, metrics, rollouts, small_config, tree
from tiny import tiny_model_folder
from variants import variant

pytestmark = pytest.mark.usefixtures("no_page")

CHAT = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def train(tiny: Path, tmp_path: Path, *rewards: Any, task: Any = ROWS, **changes: Any) -> Run:
    trained = {"rewards": list(rewards), "algorithm": None} | changes
    config = small_config(tmp_path, steps=2)
    return Trainer(tiny, task, trained["rewards"], trained["algorithm"], config).train()


def test_ten_lines_are_enough(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    # Ten lines:
    def short(prompts, completions, completion_ids, **columns):  # type: ignore[no-untyped-def]
        return [-len(completion) for completion in completions]

    problems = [{"prompt": f"{a} + {b} = ?", "answer": a + b} for a in range(9) for b in range(9)]
    rollout = {"problems_per_step": 2, "max_tokens": 4}
    config = RunConfig(steps=1, model={"threads": 1}, rollout=rollout, evaluation={"problems": 2})
    run = Trainer(model=str(tiny), task=problems, rewards=[short, "correct_answer"], config=config).train()
    # That was all.
    assert (run.directory, run.finished, run.summary["steps"]) == (Path("runs/run"), True, 1)
    for text, components in rollouts(run.directory, "SELECT text, components FROM completions"):
        assert components == f'{{"short": {-float(len(text))}, "correct_answer": 0.0}}'


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


def test_rewards_are_called_in_trls_form_with_columns(tiny: Path, tmp_path: Path) -> None:
    run = train(tiny, tmp_path, noting(tmp_path / "calls"))
    calls = {call["number"][0]: call for call in noted(tmp_path / "calls") if len(call["number"]) == 4}  # not held out
    assert len(calls) == 4  # one for each group of two steps
    for number, call in calls.items():
        assert set(call) == {"prompts", "completions", "completion_ids", "number"}
        assert call["prompts"] == [f"Say {number}."] * 4
        assert call["number"] == [number] * 4
        query = (
            "SELECT text, token_ids FROM completions JOIN problems USING (problem_id) "
            f"WHERE prompt = 'Say {number}.' ORDER BY completion_index"
        )
        texts, ids = zip(*rollouts(run.directory, query), strict=True)
        assert call["completions"] == list(texts)
        assert call["completion_ids"] == [np.frombuffer(blob, "<i4").tolist() for blob in ids]


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
        train(model, tmp_path / "runs", letters, task=CHAT)
    assert not (tmp_path / "runs").exists()
    assert train(model, tmp_path / "runs", letters).finished


def test_an_async_reward_and_weights(tiny: Path, tmp_path: Path) -> None:
    async def waits(completions: list[str], **keywords: Any) -> list[float]:
        import asyncio

        await asyncio.sleep(0)
        return [0.25 + (text[:1] < "m") for text in completions]

    run = train(tiny, tmp_path, WeightedReward("first", waits, 2.0), WeightedReward("second", letters, -1.0))
    for text, reward in rollouts(run.directory, "SELECT text, reward FROM completions"):
        expected = 2 * (0.25 + (text[:1] < "m")) - len(re.findall("[a-z]", text)) / max(1, len(text))
        assert reward == pytest.approx(expected)
    saved = load_config(RunConfig, [run.directory / "config.yaml"], [])
    assert [(reward.name, reward.weight) for reward in saved.rewards] == [("first", 2.0), ("second", -1.0)]
    assert (saved.task.name, saved.model.path) == ("list", str(tiny))


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


def test_a_task_made_beforehand_has_its_own_verifier(tiny: Path, tmp_path: Path) -> None:
    def positive(number: list[int], **_: Any) -> list[float]:
        return [float(n >= 0) for n in number]

    task = task_from_list(ROWS, name="mine", verifier=positive)
    run = train(tiny, tmp_path, letters, task=task)
    assert (run.summary["after"]["greedy_accuracy"], run.summary["task"]) == (1.0, "mine")


def test_an_algorithm_by_name_or_as_an_object(tiny: Path, tmp_path: Path) -> None:
    def step(name: str, algorithm: str | Algorithm | None) -> dict[str, Any]:
        config = small_config(tmp_path, name, steps=1)
        return metrics(Trainer(tiny, ROWS, [letters], algorithm, config).train().directory)[0]

    named = step("named", "grpo")
    assert step("default", None) == named
    mine = step("mine", variant(name="mine", scale="none", kl_coef=0.0))
    assert mine["reward"] == named["reward"]
    assert mine["grad_norm"] < 0.5 * named["grad_norm"]  # advantages are no longer divided by a deviation of about 0.2
    assert load_config(RunConfig, [tmp_path / "mine" / "config.yaml"], []).algorithm.name == "mine"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": "gropo"}, r"algorithm: expected one of .*grpo.*, got 'gropo': did you mean 'grpo'\?"),
        ({"task": "word_problem"}, r"expected one of .*, word_problems, got 'word_problem': did you mean"),
        ({"task": []}, r"expected a list of rows such as .*, got none: add problems"),
        (
            {"task": [{"question": "2 + 2"}]},
            r"expected a column 'prompt', got question: name .* with task=task_from_list\(rows, prompt_column=NAME",
        ),
        ({"rewards": ["boxed"]}, r"rewards: expected one of boxed_format, .*, got 'boxed'"),
        ({"rewards": []}, r"rewards: expected a list such as .*, got \[\]: name at least one"),
        ({"rewards": [letters, letters]}, r"rewards: expected every name once, got 'letters' 2 times: rename one"),
        ({"rewards": [7]}, r"rewards: expected a name, a function or a WeightedReward, got 7"),
        ({"rewards": None}, r"rewards: expected at least one, but the task list has no default"),
    ],
    ids=["algorithm", "task", "no rows", "no prompt", "reward", "no reward", "twice", "number", "no default"],
)
def test_what_cannot_be_trained_is_a_sentence(
    tiny: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        train(tiny, tmp_path, **{"rewards": [letters], **changes})
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


def raising(completions: list[str], **keywords: Any) -> list[float]:
    return [1 / 0 for _ in completions]


def short(completions: list[str], **keywords: Any) -> list[float]:
    return [1.0] * (len(completions) - 1)


def textual(completions: list[str], **keywords: Any) -> list[Any]:
    return ["good"] * len(completions)


def no_list(completions: list[str], **keywords: Any) -> Any:
    return 1.0


def needs_answer(answer: list[str], **keywords: Any) -> list[float]:
    return [0.0] * len(answer)


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        (
            raising,
            r"got 4 invalid of the last 8: raising raised ZeroDivisionError: .*test_trainer.py:\d+\) \(4 times\)",
        ),
        (short, r"short gave a wrong result: expected a list of 4 values, one per completion, got 3"),
        (textual, r"textual gave 'good' \(str\), expected a number or None"),
        (no_list, r"no_list gave a wrong result: expected a list of 4 values, one per completion, got float"),
        (
            needs_answer,
            r"reward needs_answer: expected problems with the column 'answer', got number: rename the column",
        ),
    ],
)
def test_a_broken_reward_stops_the_run_and_is_named(
    tiny: Path, tmp_path: Path, reward: Callable[..., Any], sentence: str
) -> None:
    config = small_config(tmp_path, steps=2, rollout={**SMALL["rollout"], "scoring": {"max_invalid": 0.05}})
    with pytest.raises(UserError, match=sentence):
        Trainer(tiny, ROWS, [reward], config=config).train()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_nan_is_invalid_and_the_others_are_compared_without_it(tiny: Path, tmp_path: Path) -> None:
    def broken_for_the_first(completions: list[str], **keywords: Any) -> list[float]:
        # Twice in each group of four: invalid, then 0, 1, 2.
        return [math.nan if n % 4 == 0 else float(n % 4 - 1) for n in range(len(completions))]

    run = train(tiny, tmp_path, broken_for_the_first)
    query = "SELECT completion_index, reward, invalid_reason, advantage FROM completions"
    score = math.sqrt(3 / 2)  # 1 over the deviation of 0, 1, 2
    for index, reward, reason, advantage in rollouts(run.directory, query):
        expected = (None, 0.0, 1.0, 2.0)[index], (0.0, -score, 0.0, score)[index]
        assert (reward, advantage) == (expected[0], pytest.approx(expected[1], abs=1e-4))
        assert (reason is None) == (index > 0)
    assert all(row["frac_invalid"] == 0.25 and row["reward"] == 1.0 for row in metrics(run.directory))


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


def test_none_beside_a_reward_that_applies_leaves_that_one(tiny: Path, tmp_path: Path) -> None:
    def for_even_numbers(number: list[int], **keywords: Any) -> list[float | None]:
        return [None if n % 2 else 10.0 for n in number]

    run = train(tiny, tmp_path, letters, for_even_numbers)
    query = "SELECT text, reward, columns FROM completions JOIN problems USING (problem_id)"
    for text, reward, columns in rollouts(run.directory, query):
        even = int(re.findall(r"\d+", columns)[0]) % 2 == 0
        assert reward == pytest.approx(len(re.findall("[a-z]", text)) / max(1, len(text)) + 10 * even)


def test_plain_prompts_for_a_chat_model_are_warned_of(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny, tmp_path / "plain", letters)
    assert "Warning: the model has a chat template, but plain-text prompts" in capsys.readouterr().out
    train(tiny, tmp_path / "chat", letters, task=CHAT)
    train(tiny_model_folder(tmp_path / "model", chat_template=False), tmp_path / "bare", letters)
    assert "Warning" not in capsys.readouterr().out


@pytest.mark.parametrize(("setting", "warned"), [("", 1), ("on", 1), ("off", 0)])
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
        Trainer(tiny, ROWS, [letters], config=small_config(tmp_path, steps=2)).train()
    finally:
        monkeypatch.undo()
        build.library.cache_clear()
        build.library_file.cache_clear()
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("no C compiler") == said.count("1.3 to 3 times as long") == warned


def test_rows_of_any_kind_are_a_task(tiny: Path, tmp_path: Path) -> None:
    assert train(tiny, tmp_path, letters, task=(row for row in ROWS)).finished
    for task in ({"prompt": "x"}, 7):
        with pytest.raises(UserError, match=r"task: expected .*rows such as"):
            train(tiny, tmp_path / "none", letters, task=task)


@pytest.mark.parametrize(
    ("capability", "dtype", "warned"),
    [("AVX2", "bfloat16", True), ("AVX512", "bfloat16", False), ("AVX2", "float32", False)],
)
def test_products_in_software_are_warned_of(
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    capability: str,
    dtype: str,
    warned: bool,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    config = small_config(tmp_path, steps=1, model={"path": str(tiny), "dtype": dtype})
    Trainer(tiny, ROWS, [letters], config=config).train()
    assert ("emulates bfloat16" in " ".join(capsys.readouterr().out.split())) == warned


def test_the_model_is_saved_without_the_state_of_its_run(tiny: Path, tmp_path: Path) -> None:
    trainer = Trainer(tiny, ROWS, [letters], config=small_config(tmp_path, steps=1))
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


@pytest.mark.parametrize("words", ["task='nope'", "rewards=['nope']", "config=3"])
def test_a_script_shows_one_sentence_and_no_traceback(words: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"from grouprl import Trainer\nTrainer(model='abacus', {words}).train()\n")
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr


def test_an_error_that_is_not_the_users_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("from grouprl import Trainer\nTrainer(model='abacus')\n1 / 0\n")
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    assert "Traceback" in ended.stderr


def test_a_run_is_measured_by_its_own_reward_and_not_by_a_verifier_that_nobody_asked_for(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"Say {n}.", "answer": "7"} for n in range(40)]  # its verifier is correct_answer

    def letters(completions: list[str], **columns: Any) -> list[float]:
        return [sum(map(str.isalpha, text)) / max(1, len(text)) for text in completions]

    run = Trainer(tiny, rows, [letters], config=small_config(tmp_path, steps=2)).train()
    shown = " ".join(capsys.readouterr().out.split())
    assert "correct" not in shown
    assert "accuracy" not in shown.lower()
    assert "Mean reward" in shown
    before, after, change = (run.summary[name] for name in ("before", "after", "change"))
    assert run.summary["measure"] == "reward"
    for name in ("reward", "rewards/letters/mean"):
        assert change[name]["mean"] == pytest.approx(after[name] - before[name])
        low, high = change[name]["interval"]
        assert low < change[name]["mean"] < high
    assert "greedy_accuracy" not in after
    assert "accuracy" not in run.metrics().names
    assert rollouts(run.directory, "SELECT DISTINCT correct FROM completions") == [(None,)]
    examples = json.loads((run.directory / "examples.json").read_text())["after"]
    assert all(one["correct"] is None and one["reward"] is not None for one in examples)
    # With the verifier as a reward of weight 0 somebody asked for it; the run's own reward stays the measure.
    asked = [letters, built_in("correct_answer", weight=0.0)]
    both = Trainer(tiny, rows, asked, config=small_config(tmp_path, "both", steps=2)).train().summary
    assert (both["measure"], both["after"]["greedy_accuracy"]) == ("reward", 0.0)
    judged = Trainer(tiny, rows, ["correct_answer"], config=small_config(tmp_path, "judged", steps=2)).train().summary
    assert judged["measure"] == "greedy_accuracy"
    assert "Greedy accuracy 0.0%" in capsys.readouterr().out


def test_no_evaluation_problems_mean_no_evaluation(tiny: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, steps=2, evaluation={"problems": 0, "every": 1})
    run = Trainer(tiny, ROWS, [letters], config=config).train()
    assert run.finished
    assert (run.summary["before"], run.summary["after"]) == ({"problems": 0}, {"problems": 0})
    assert not (run.directory / "evaluations.jsonl").exists()


def test_held_out_completions_end_as_those_of_training_do(tiny: Path, tmp_path: Path) -> None:
    rollout = {"problems_per_step": 2, "group_size": 4, "max_tokens": 8, "regex": "[ab]{2}c"}
    run = Trainer(tiny, ROWS, [letters], config=small_config(tmp_path, steps=1, rollout=rollout)).train()
    examples = json.loads((run.directory / "examples.json").read_text())
    texts = [one["completion"] for rows in examples.values() for one in rows]
    assert texts
    assert all(re.fullmatch("[ab]{2}c", text) for text in texts)
