"""The command line: what each verb does on real input, and one sentence for everything that a user can fix."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from grouprl.cli import app
from small_runs import Ended, grouprl, gsm8k_row, metrics, small_settings, tree, write_rows

ROWS = [gsm8k_row(number) for number in range(30)]
VERBS = (
    *("train", "sft", "dpo", "reward-model", "eval", "sample", "compare", "check-reward", "check-data", "export"),
    *("report", "lab", "plan", "import-config", "tasks", "settings", "doctor", "check-model", "import-model"),
    *("export-model", "merge", "push", "replay", "selftest"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data file, and under runs/ a finished run of two steps."""
    folder = tmp_path_factory.mktemp("place")
    write_rows(folder / "data.jsonl", ROWS)
    return folder


@pytest.fixture(scope="module")
def guesser(place: Path) -> Path:
    """A tiny model that has learned to box a number in about half of its completions: with it, rewards differ."""
    pairs = [
        {"prompt": [{"role": "user", "content": ROWS[n % 30]["question"]}], "completion": completion}
        for n in range(400)
        for completion in (f"\\boxed{{{n % 7}}}", "I think 7")
    ]
    write_rows(place / "pairs.jsonl", pairs)
    ended = grouprl(
        "sft", f"pairs.path={place / 'pairs.jsonl'}", f"runs_dir={place / 'sft'}", "model.threads=1",
        "batch_pairs=16", "epochs=3", "learner.learning_rate=0.01",
        'new_model={"hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 2, "context": 256}',
        f"out={place / 'guesser'}",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    return place / "guesser"


def train(place: Path, model: Path, *more: object, **sections: Any) -> Ended:
    settings = small_settings(place / "runs", **{"steps": 2, "learner": {"learning_rate": 0.001}, **sections})
    return grouprl("train", "--model", model, "task.name=gsm8k", f"task.path={place / 'data.jsonl'}", *settings, *more)


@pytest.fixture(scope="module")
def finished(place: Path, guesser: Path) -> Path:
    ended = train(place, guesser, "rollout.max_tokens=12", evaluation={"problems": 3, "samples": 8})
    assert ended.code == 0, ended.err
    return place / "runs" / "run"


def test_a_run_on_gsm8k_s_form_leaves_its_figures(finished: Path, guesser: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    for when in ("before", "after"):
        for share in ("greedy_accuracy", "pass_at_1", "pass_at_8", "worked_share"):
            assert 0 <= summary[when][share] <= 1
        assert 1 <= summary[when]["mean_length"] <= 12
        assert summary[when]["problems"] == 3
    assert (summary["steps"], summary["seed"]) == (2, 0)
    assert 16 <= summary["completion_tokens"] <= 16 * 12
    assert summary["model"] == str(guesser)
    rows = metrics(finished)
    assert any(row["frac_reward_zero_std"] < 1 for row in rows)
    assert any(0 < row["rewards/boxed_format/mean"] < 1 for row in rows)
    names = [row["reward"] for row in rows]
    parts = [0.5 * row["rewards/boxed_format/mean"] + row["rewards/correct_answer/mean"] for row in rows]
    assert names == pytest.approx(parts)
    trained = AutoModelForCausalLM.from_pretrained(finished / "checkpoints/step-000002")
    start = AutoModelForCausalLM.from_pretrained(guesser)
    assert (trained.lm_head.weight - start.lm_head.weight).abs().max() > 0.001


def test_eval_of_a_run_or_its_checkpoint_finds_what_the_run_found(finished: Path, tmp_path: Path) -> None:
    ended = grouprl("eval", finished, "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == json.loads((finished / "summary.json").read_text())["after"]
    other = json.loads(grouprl("eval", finished / "checkpoints/step-000002", "--json", "evaluation.problems=2").out)
    assert other["problems"] == 2
    shutil.copy(finished / "config.yaml", tmp_path)
    refused(grouprl("sample", tmp_path), "expected a run with a checkpoint, got one without")


@pytest.mark.parametrize("more", [(), ("--pass-at", 2)], ids=["metrics", "pass@k"])
def test_signs_of_life_are_not_in_json(
    finished: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[object, ...]
) -> None:
    monkeypatch.setattr("grouprl.trainer.terminal.QUIET", 0.0)
    ended = grouprl("eval", finished, "--json", "evaluation.problems=2", *more)
    assert json.loads(ended.out)
    assert "evaluate: " in ended.err


def test_eval_shows_a_table(finished: Path, guesser: Path, place: Path) -> None:
    ended = grouprl(
        "eval", guesser, "--task", "gsm8k", f"task.path={place / 'data.jsonl'}", "evaluation.samples=2",
        "rollout.max_tokens=12",
    )  # fmt: skip
    assert ended.code == 0
    assert "3 problems of gsm8k" in ended.text
    share = r" +│ +\d+\.\d% │ +\d+\.\d% to +\d+\.\d%"
    for line in ("greedy_accuracy" + share, "pass_at_1" + share, "pass_at_2" + share, r"mean_length +│ +\d+\.\d"):
        assert re.search(line, ended.out), line


def test_sample_shows_a_group_with_rewards_and_advantages(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = grouprl("sample", finished / "checkpoints/step-000002", "--problem", 1, "rollout.group_size=6", "seed=1")
    assert ended.code == 0, ended.err
    assert re.search(r"Ben has \d+ pens and buys 1 more", ended.out)
    assert len(re.findall(r"^   boxed_format [01]\.0  correct_answer [01]\.0 *$", ended.out, re.MULTILINE)) == 6
    shown = r"^(\d)  reward (\S+)  advantage (\S+)  \d+ tokens, ended by (?:end|length) *$"
    rows = re.findall(shown, ended.out, re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(range(6))
    rewards, advantages = [float(row[1]) for row in rows], [float(row[2]) for row in rows]
    mean = sum(rewards) / 6
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / 6) ** 0.5
    assert deviation > 0
    assert advantages == pytest.approx([(reward - mean) / deviation for reward in rewards], abs=0.01)
    assert f"group mean {mean:.3f}, population deviation {deviation:.3f}" in ended.text


def test_sample_of_ones_own_prompt_has_no_rewards(finished: Path, guesser: Path) -> None:
    for model, size in ((guesser, 8), (finished / "checkpoints/step-000002", 4)):  # the default, or the run's
        ended = grouprl("sample", model, "--prompt", "Tell me [bold]a[/bold] number.", "rollout.max_tokens=5")
        assert ended.code == 0, ended.err
        assert "Tell me [bold]a[/bold] number." in ended.out
        assert len(re.findall(r"^\d  \d tokens, ", ended.out, re.MULTILINE)) == size
        assert "advantage" not in ended.out


def test_report_is_written_anew(finished: Path) -> None:
    page = finished / "report.html"
    written = page.read_text()
    page.unlink()
    ended = grouprl("report", finished)
    assert ended.out.splitlines() == [f"Report: {page}", f"Try: grouprl lab {finished}"]
    assert page.read_text() == written


def test_every_verb_is_listed_with_an_example() -> None:
    for verb in VERBS:
        ended = grouprl(verb, "--help")
        assert (ended.code, f"Example: grouprl {verb} " in ended.text) == (0, True), verb
    assert tuple(command.name or command.callback.__name__ for command in app.registered_commands) == VERBS  # type: ignore[union-attr]
    assert grouprl("--help").code == 0
    assert grouprl("trian").code == 2


def test_files_and_changes_apply_in_order_and_options_are_text(place: Path, guesser: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("seed: 5\nsteps: 7\nname: from-file\n")
    (tmp_path / "demo").mkdir()
    model = tmp_path / "model: no. 1 #2"
    shutil.copytree(guesser, model)
    data = place / "data.jsonl"
    ended = grouprl("train", recipe, *small_settings(tmp_path), "task.name=gsm8k", f"task.path={data}", "steps=1",
                    "--model", model, "--name", "007")  # fmt: skip
    assert ended.code == 0, ended.err
    summary = json.loads((tmp_path / "007" / "summary.json").read_text())
    assert (summary["seed"], summary["steps"], summary["model"]) == (5, 1, str(model))


def test_the_recipe_for_a_file_trains_on_one(guesser: Path, tmp_path: Path) -> None:
    own = [{"prompt": f"What is {number} and 2?", "answer": str(number + 2)} for number in range(20)]
    named = f"task.name={write_rows(tmp_path / 'mine.jsonl', own)}"
    ended = grouprl("train", "own_file", *small_settings(tmp_path), named, "steps=1", f"model.path={guesser}",
                    "model.dtype=float32", "--name", "made")  # fmt: skip
    assert ended.code == 0, ended.err
    assert json.loads((tmp_path / "made" / "summary.json").read_text())["before"]["problems"] > 0


def refused(ended: Ended, *parts: str) -> None:
    assert ended.code == 2, ended.text
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.text
    for part in parts:
        assert part in ended.text


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("rollout.group_size=1",), ("error: rollout.group_size: expected 2", "got 1", "the others of its group")),
        (("steps=many", "seed=-1"), ("override steps=many: steps: ", "override seed=-1: seed: ")),
        (("--model", "abacuss"), ("model 'abacuss'", "did you mean 'abacus'?")),
        (("--num_generations", "4"), ("a setting has no dashes: TRL's or verl's num_generations is here rollout",)),
        (("--steps", "5"), ("--steps: expected an option that --help lists", "write steps=5")),
        (
            ("compare_famly",),
            (
                "expected one of calculator, demo, distill, gemma_sums, gsm8k, ladder, names, own_file",
                "smollm2_course",
                "got 'compare_famly'",
            ),
        ),
        (("rollout.max_tokens=250",), ("expected a prompt of 1 to 6 tokens", "got", "lower rollout.max_tokens")),
        (("no.yaml",), ("no.yaml: expected a YAML file, got 'No such file or directory'; check the path",)),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_bad_settings(place: Path, guesser: Path, change: tuple[str, ...], parts: tuple[str, ...]) -> None:
    before = tree(place)
    refused(train(place, guesser, "name=other", *change), *parts)
    assert tree(place) == before


def test_one_long_question_that_only_training_would_meet(place: Path, guesser: Path) -> None:
    long = gsm8k_row(1, question="pens " * 300)
    write_rows(place / "long.jsonl", [*ROWS, long])
    before = tree(place)
    ended = train(place, guesser, f"task.path={place / 'long.jsonl'}", "--name", "new", "steps=20")
    refused(ended, "problem 'gsm8k/train/", "expected a prompt of 1 to", "shorten the prompt or lower")
    assert tree(place) == before


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("learner.learning_rate=0.5",), ("learner.learning_rate: 0.001 then, 0.5 now: restore them",)),
        (("--model", "abacus"), ("model.path: ", "then, 'abacus' now", "or start a new run under another name")),
        (
            ("rewards=[{name: boxed_format}]",),
            ("rewards: () then, ({'name': 'boxed_format', 'function': None, 'weight': 1.0, ",),
        ),
        (("seed=1", "rollout.top_k=5"), ("rollout.top_k: 0 then, 5 now; seed: 0 then, 1 now",)),
        (("--name", "nobody"), ("nobody: expected a run to resume, found no config.yaml: check name and runs_dir",)),
    ],
    ids=lambda value: " ".join(value[:2]) or "finished" if isinstance(value, tuple) else None,
)
def test_bad_resume(place: Path, finished: Path, change: tuple[str, ...], parts: tuple[str, ...]) -> None:
    before = tree(place)
    refused(grouprl("train", "--resume", f"runs_dir={place / 'runs'}", *change), *parts)
    assert tree(place) == before


def test_a_finished_run_is_left_as_it_is(place: Path, finished: Path) -> None:
    before = tree(place)
    ended = grouprl("train", "--resume", f"runs_dir={place / 'runs'}")
    assert ended.code == 0
    assert "has finished all of its 2 steps: nothing is missing. To train further, give a larger number" in ended.text
    assert tree(place) == before


def copied(place: Path, finished: Path, tmp_path: Path) -> list[str]:
    """A copy of everything, whose run and model can be damaged; gives the settings that resume it."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "runs" / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(place), str(tmp_path)))
    return ["train", "--resume", f"runs_dir={tmp_path / 'runs'}", "steps=3"]


def test_resume_of_what_is_not_there_any_more(place: Path, finished: Path, tmp_path: Path) -> None:
    resume = copied(place, finished, tmp_path)

    def is_refused(*parts: str) -> None:
        before = tree(tmp_path)
        refused(grouprl(*resume), *parts)
        assert tree(tmp_path) == before

    data = tmp_path / "data.jsonl"
    write_rows(data, [*ROWS[:-1], gsm8k_row(99)])
    is_refused("expected the train problems that the run started with", "restore the train problems")
    data.unlink()
    is_refused("expected a data file at", "found none: check the path")
    write_rows(data, ROWS)
    shutil.copy(tmp_path / "runs/run/checkpoints/step-000002/model.safetensors", tmp_path / "guesser")
    is_refused("expected the model that the run started with (fingerprint", "restore the model, or start")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("eval", "./no-such-model"), ("model './no-such-model': expected a folder",)),
        (("sample", "GUESSER", "--problem", "500"), ("--problem: expected less than 500", "got 500")),
        (("report", "no-such-run"), ("no-such-run: expected a run directory", "such as runs/NAME")),
        (("sft", "--task", "gsm8k", "task.path=none.jsonl"), ("expected a data file at none.jsonl, found none",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_other_verbs_say_what_they_need(
    guesser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(grouprl(*(str(guesser) if text == "GUESSER" else text for text in arguments)), *parts)
    assert tree(tmp_path) == {}


def test_a_run_is_a_model_to_train_and_check(finished: Path, tmp_path: Path) -> None:
    newest = finished / "checkpoints" / "step-000002"
    ended = grouprl(
        "train", finished / "config.yaml", "--model", finished, f"runs_dir={tmp_path}", "name=on", "steps=1"
    )
    assert ended.code == 0, ended.text
    assert f"path: {newest}\n" in (tmp_path / "on" / "config.yaml").read_text()
    assert ended.out.splitlines()[-2:] == [
        f"Model: {tmp_path}/on/checkpoints/step-000001",
        f"Try: grouprl sample {tmp_path}/on, grouprl lab {tmp_path}",
    ]
    ended = grouprl("check-model", finished)
    assert ended.out.splitlines()[-1] == f"Try: grouprl sample {newest}, grouprl train --model {newest}"
    ended = grouprl("merge", finished, tmp_path / "merged")
    assert f"{newest}: expected the folder of a LoRA adapter" in ended.err


def test_a_run_is_resumed_by_its_folder(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    ended = grouprl("train", "--resume", tmp_path / "copy", "steps=3")
    assert ended.code == 0, ended.text
    assert len(metrics(tmp_path / "copy")) == 3
    assert len(metrics(finished)) == 2


def test_an_option_that_is_none_is_explained_by_every_verb() -> None:
    for verb in (*VERBS[:8], "plan", "check-model", "replay"):
        ended = grouprl(verb, "--steps=3")
        assert ended.code == 2
        assert "--steps=3: expected an option that --help lists; a setting has no dashes" in ended.err, verb


@pytest.mark.parametrize("given", ["good:f", "good:f=0.5"])
def test_a_reward_without_py_is_refused_without_asking_the_hub(given: str) -> None:
    refused(grouprl("train", "--reward", given), "expected FILE.py:FUNCTION, got 'good': write good.py:f")


def test_the_name_of_a_run_is_judged_before_its_model_loads(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("grouprl.run.opened.load_model", never)
    ended = grouprl("train", finished / "config.yaml", "--name", finished.name, f"runs_dir={finished.parent}")
    assert f"continue that run with grouprl train --resume {finished}" in ended.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "train --resume NOFOLDER",
            "give the folder that a training run wrote, such as runs/demo",
        ),
        ("train --resume runs/dmo", "found none: did you mean runs/demo?"),
        ("train demo runs/no", "a run is resumed with --resume, a model is given with --model"),
        ("train demo runs/demo", "continue that run with grouprl train --resume runs/demo"),
        ("train demo rollout.group_size = 8", "without spaces: write rollout.group_size=8"),
        ("train demo rollout.group_size =8", "without spaces: write rollout.group_size=8"),
        ("train demo rollout.group_size= 8", "without spaces: write rollout.group_size=8"),
        ("train demo algorithm.kl_coef 0.1", "got no =: write algorithm.kl_coef=0.1"),
        ("eval abacus steps 5", "got no =: write steps=5"),
        ("plan algorithm dapo", "got no =: write algorithm=dapo"),
        ("train abacus", "got a name: write --model abacus"),
        ("sft demo countdown", "got a name: write --task countdown"),
        ("sample abacus What is 2+2?", "quote a prompt, --prompt 'What is 2+2?'"),
        ("train demo algorithm.distill=0.1", "write algorithm.distill_coef=0.1"),
        ("eval abacus --beside nowhere", "--beside: model 'nowhere'"),
        ("eval abacus --beside abacus", "--beside: expected another model than abacus"),
        (
            "check-reward demo problems 5",
            "problems: expected a recipe, a file or KEY=VALUE, got no =: write evaluation.p",
        ),
        ("check-reward mine.py:f", "got code: write --reward mine.py:f, or algorithm=mine.py:f"),
        ("train runs", "got a folder that is no run: a run is resumed"),
        ("train demo --task runs", "task.name: expected a folder with data files"),
        ("train demo --model runs/demo/config.yaml", "expected a folder in Hugging Face layout, got a file"),
        (
            "train demo name=x model.chat_template=runs",
            "expected a file, got a folder, a pipe or a device: give a file",
        ),
        (
            "train demo algorithm=runs/mine.py:f",
            "runs/mine.py, got none: write NAME = Algorithm(...)",
        ),
        ("eval abacus --beside abacus_tools", "--beside abacus_tools: expected --pass-at with it, got none"),
    ],
)
def test_a_poor_command_line_is_answered_with_the_right_one(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/config.yaml").write_text("name: demo\n")
    (tmp_path / "runs/mine.py").write_text("f = 1\n")
    refused(grouprl(*words.split()), sentence)


@pytest.mark.parametrize(
    ("words", "text"),
    [("-h", "COMMAND [ARGS]"), ("help", "Usage: grouprl"), ("help train", "Example: grouprl train"),
     ("train -h", "Example: grouprl train"), ("version", "grouprl 0."), ("--version", "grouprl 0.")],
)  # fmt: skip
def test_help_and_version_by_their_usual_names(words: str, text: str) -> None:
    ended = grouprl(*words.split())
    assert ended.code == 0
    assert text in " ".join(ended.out.split())
