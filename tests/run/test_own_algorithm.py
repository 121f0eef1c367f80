"""An algorithm in a user's file goes everywhere: every verb, one record, one rule of trust, errors in a few lines."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import letter_rewards
from explaining import ask, lab
from grouprl import Trainer, UserError
from grouprl.algorithms.advantages import check_tensor
from grouprl.config.run import RunConfig, load_config
from grouprl.lab.report.groups import one_group
from grouprl.lab.runs import Runs
from small_runs import LETTERS, ROWS, grouprl, metrics, rollouts, small_config, small_settings, write_rows

DOCS = Path(__file__).parents[2] / "docs/algorithms.md"
FILE = re.search(r"```python\n(\"\"\"The median.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[1]  # type: ignore[index]


BRIEF = {"problems": 1, "samples": 0}


def settings(tiny: Path, folder: Path, name: str, **changes: Any) -> list[str]:
    write_rows(folder / "rows.jsonl", [{**row, "answer": "1"} for row in ROWS])
    reward = [{"name": "letters", "path": letter_rewards.__file__}]
    task = {"name": "jsonl", "path": str(folder / "rows.jsonl")}
    model = {"path": str(tiny), "threads": 1}
    given = {"model": model, "task": task, "rewards": reward, "steps": 1, "name": name, "evaluation": BRIEF, **changes}
    return small_settings(folder / "runs", **given)


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the file of the docs, a run of it, and a state of the user, who knows both."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.chdir(folder)
        ended = grouprl("train", *settings(tiny, folder, "run"), "algorithm=mine.py:mine", "algorithm.bound=0.2")
        assert ended.code == 0, ended.text
        yield folder


@pytest.fixture
def own(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in the user's current folder; the file is known there too."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    digest = sha256(FILE.encode()).hexdigest()
    with (tmp_path / "state/grouprl/code.sha256").open("a") as known:
        known.write(f"{digest}  {(tmp_path / 'mine.py').resolve()}\n")
    code = json.loads((tmp_path / "runs/run/code.json").read_text())
    code["files"] = {str(tmp_path / "mine.py") if "mine" in path else path: one for path, one in code["files"].items()}
    (tmp_path / "runs/run/code.json").write_text(json.dumps(code))
    return tmp_path


def test_the_file_of_the_docs_computes_what_they_say(made: Path) -> None:
    run = made / "runs/run"
    for group in (0, 1):
        rows = rollouts(run, f"SELECT reward, advantage FROM completions WHERE group_index = {group}")
        middle = statistics.median(reward for reward, _ in rows)
        assert [advantage for _, advantage in rows] == pytest.approx([r - middle for r, _ in rows], abs=1e-6)
        assert any(advantage for _, advantage in rows)


def test_the_record_names_the_file_its_bytes_and_the_options(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = yaml.safe_load((made / "runs/run/config.yaml").read_text())["algorithm"]
    assert algorithm["name"] == "mine.py:mine"
    assert (algorithm["own_options"]["bound"], algorithm["own_options"]["baseline"]) == (0.2, "median")
    files = json.loads((made / "runs/run/code.json").read_text())["files"]
    assert files[str(made / "mine.py")] == sha256(FILE.encode()).hexdigest()
    # Where the file has not run, which no mine.py of this folder has, the rest is read, and says that it is not all.
    monkeypatch.chdir(tmp_path)
    read = load_config(RunConfig, [made / "runs/run/config.yaml"], []).algorithm
    assert {"advantage", "objective"} <= dict(read.missing).keys()


VERBS = {
    "resume": ["train", "--resume", "runs/run", "steps=2"], "eval": ["eval", "runs/run"],
    "sample": ["sample", "runs/run"], "replay": ["replay", "runs/run", "1"],
    "train": ["train", "runs/run/config.yaml", "name=again"], "plan": ["plan", "runs/run/config.yaml"],
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_reads_it_back_and_runs_the_file_only_as_it_was(own: Path, verb: str) -> None:
    ended = grouprl(*VERBS[verb])
    assert ended.code == 0, ended.text
    if verb == "replay":
        assert "Bit-identical" in ended.text
    (own / "mine.py").write_text(f"open('ran', 'w')\n{FILE}")
    ended = grouprl(*(word.replace("steps=2", "steps=3").replace("again", "once") for word in VERBS[verb]))
    assert ended.code == 2, ended.text
    assert "mine.py" in ended.text
    assert "which you have not run here in this form" in ended.text or "as it was when" in ended.text
    assert not (own / "ran").exists()


@pytest.mark.parametrize("verb", ["resume", "eval"])
def test_a_run_that_was_received_runs_no_code(own: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "mine.py").write_text(f"open('ran', 'w')\n{FILE}")
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "another"))
    ended = grouprl(*VERBS[verb])
    assert ended.code == 2
    assert f"names the code file {own / 'mine.py'}, which you have not run here" in ended.text
    assert grouprl("report", "runs/run").code == 0
    page = ask(lab(own / "runs"), "algorithms")
    assert "mine.py:mine" not in [one["name"] for one in page["algorithms"]]
    statistics_of_page = one_group(own / "runs/run", 1, 0)["statistics"]
    assert statistics_of_page["advantages"] is None or statistics_of_page["agree"]
    assert not (own / "ran").exists()


def test_a_changed_file_that_is_trusted_continues(own: Path) -> None:
    changed = FILE.replace("self.bound * torch.tanh", "0.0 * torch.tanh")
    assert changed != FILE
    (own / "mine.py").write_text(changed)
    ended = grouprl("train", "--resume", "runs/run", "steps=2", "--trust-code", "mine.py")
    assert ended.code == 0, ended.text
    assert metrics(own / "runs/run")[1]["grad_norm"] == 0
    ended = grouprl("train", "--resume", "runs/run", "steps=3", "algorithm.bound=0.5")
    assert ended.code == 2
    assert "bound=0.2" in ended.text


def test_the_page_computes_with_it_too(own: Path) -> None:
    """The hand-worked group 0, 1, 1, 5: its median is 1."""
    page = lab(own / "runs")
    assert (
        "r - median" in {one["name"]: one["formula"] for one in ask(page, "algorithms")["algorithms"]}["mine.py:mine"]
    )
    found = ask(page, "advantages?rewards=0,1,1,5&algorithms=mine.py:mine")["algorithms"]["mine.py:mine"]
    assert (found["baselines"], found["advantages"]) == ([1.0] * 4, [-1.0, 0.0, 0.0, 4.0])
    group = one_group(own / "runs/run", 1, 0)
    assert group["algorithm"]["name"] == "mine.py:mine"
    assert group["statistics"]["agree"] is True
    walk = ask(page, "group?rewards=0,1,1,5&algorithm=mine.py:mine")
    assert walk["stages"]["advantages"]["completions"] == [-1.0, 0.0, 0.0, 4.0]
    assert ask(page, "group?run=run&step=1")["algorithm"]["name"] == "mine.py:mine"
    assert Runs(own / "runs").overview(own / "runs/run")["algorithm"] == "mine.py:mine"


def test_a_recipe_and_python_name_it_alike(tiny: Path, own: Path) -> None:
    (own / "recipe.yaml").write_text("algorithm: {name: 'mine.py:mine', bound: 0.2}\n")
    ended = grouprl("train", "recipe.yaml", *settings(tiny, own, "recipe"))
    assert ended.code == 0, ended.text
    losses = [metrics(own / "runs" / name)[0]["grad_norm"] for name in ("run", "recipe")]
    assert losses[0] == losses[1]
    algorithm = {"name": "mine.py:mine", "bound": 0.2}
    config = small_config(own / "runs", "python", steps=1, algorithm=algorithm, evaluation=BRIEF)
    by_config = Trainer(str(tiny), ROWS, [LETTERS], config=config)
    assert by_config.train().finished
    assert by_config.train(resume=True).finished
    assert load_config(RunConfig, [own / "runs/python/config.yaml"], []).algorithm.objective.bound == 0.2  # type: ignore[attr-defined]
    config = small_config(own / "runs", "name", steps=1, evaluation=BRIEF)
    by_name = Trainer(str(tiny), ROWS, [LETTERS], "mine.py:mine", config).train()
    assert by_name.summary["algorithm"] == "mine.py:mine"


@pytest.mark.slow
def test_it_is_compared_in_processes_of_their_own(tiny: Path, own: Path) -> None:
    given = [one for one in settings(tiny, own, "") if not one.startswith(("name=", "runs_dir="))]
    command = ["compare", *given, "--vary", "algorithm=grpo,mine.py:mine", "--seeds", "2", "--name", "c", "jobs=2"]
    ended = grouprl(*command)
    assert ended.code == 0, ended.text
    assert (own / "runs/c/mine.py-mine-seed1/report.html").is_file()
    assert grouprl(*command).code == 0
    (own / "mine.py").write_text(FILE + "\n")
    ended = grouprl(*command)
    assert ended.code == 2
    assert f"expected {own / 'mine.py'} as it was when" in ended.text


@pytest.mark.slow
def test_selftest_checks_it(tiny: Path, own: Path) -> None:
    ended = grouprl("selftest", *settings(tiny, own, "s"), "algorithm=mine.py:mine")
    assert ended.code == 0, ended.text


# What is wrong in the file


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train --algorithm nothing.py:mine", "nothing.py: expected a Python file, found none"),
        ("train algorithm=mine.py:min", "did you mean 'mine'?"),
        ("selftest algorithm=mine.py:torch", "got 'torch'"),
        ("train --algorithm GRPO", "did you mean 'grpo'?"),
        (
            "train algorithm=broken.py:mine",
            "got ZeroDivisionError: division by zero: correct it broken.py:2 in <module>: 1",
        ),
        ("selftest algorithm=unread.py:mine", "got SyntaxError: invalid syntax: correct it unread.py:1: a b"),
    ],
)
def test_what_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str) -> None:
    for name, text in (("mine", FILE), ("broken", "x = 1\n1 / 0\n"), ("unread", "a b\n")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    ended = grouprl(*command.split())
    assert ended.code == 2
    assert words in ended.text
    assert "Traceback" not in ended.text


STATISTICS, GAIN = "replace(stats, baseline_N=median_N, ", "return (1 + change_NT) * terms.advantages_NT"
BEFORE = "    def gain(self"
LOSS = f"    def loss(self, *a):\n        return a[0].logprobs_NT{{}}\n\n{BEFORE}"
WRONG = [
    (STATISTICS, "replace(stats, baseline_N=median_N[:3], ", r"baseline_N: expected a tensor \(\d+,\) .*got \(3,\)"),
    (STATISTICS, "replace(stats, baseline_N=0.5, ", r"baseline_N: expected a tensor \(\d+,\) .*got float"),
    (STATISTICS, "replace(stats, mean=median_N, ", r"keyword argument 'mean'.*mine.py:\d+ in statistics"),
    (STATISTICS, "replace(stats, baseline_N=median_N / 0, ", r"advantages_NT: expected a tensor \(8, 8\) of finite"),
    ("        return replace(stats", "        replace(stats", r"expected Statistics, got NoneType"),
    ("stats = group", "raise KeyError('lost'); stats = group", r"KeyError: 'lost'.*mine.py:\d+ in statistics: raise K"),
    (GAIN, "return terms.advantages_NT[:1]", r"gain: expected a tensor \(\d, \d\) of finite .*got \(1, \d\) of "),
    (GAIN, f"{GAIN} / 0", r"gain: expected .* of finite numbers, got .* NaN or infinite"),
    (GAIN, "return None", r"gain: expected a tensor \(\d, \d\) of finite numbers, got NoneType"),
    (GAIN, "return terms.advantages_NT", r"gain: expected a function of ratio_NT or logprobs_NT, got no gradient"),
    (GAIN, "return terms.advantage_NT", r"AttributeError: .*mine.py:\d+ in gain: return terms.advantage_NT"),
    (BEFORE, LOSS.format(".sum()"), r"expected \(loss, stats\)"),
    (BEFORE, LOSS.format(", {}"), r"loss: expected a tensor \(\) of numbers, got \(\d, \d\) of float32"),
    (BEFORE, f"    def weights(self, m, **a):\n        return m[:1]\n\n{BEFORE}", r"weights: expected a tensor \(8"),
    ("    def statistics", "    def assign(self, batch):\n        return batch.rewards_N\n\n    def statistics",
     r"assign: expected Credit\(advantages_NT\), got Tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "pattern"), WRONG)
def test_what_it_computes_wrong_is_a_sentence_with_its_lines(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, pattern: str
) -> None:
    assert FILE.count(old) == 1
    (tmp_path / "mine.py").write_text(FILE.replace(old, new))
    monkeypatch.chdir(tmp_path)
    if "mine.py:" in pattern:  # an exception of the file, which the command line makes a sentence
        ended = grouprl("train", *settings(tiny, tmp_path, "run", evaluation={"problems": 0}), "algorithm=mine.py:mine")
        assert ended.code == 2, ended.text
        assert "Traceback" not in ended.text
        told = ended.err
    else:
        config = small_config(tmp_path, steps=1, evaluation={"problems": 0})
        with pytest.raises(UserError) as raised:
            Trainer(str(tiny), ROWS, [LETTERS], "mine.py:mine", config).train()
        told = str(raised.value)
    assert re.search(pattern, " ".join(told.split()))
    assert len([line for line in told.splitlines() if "mine.py:" in line]) <= 3


def test_a_field_that_enters_no_advantage_cannot_be_replaced() -> None:
    from dataclasses import replace

    from grouprl.algorithms import group_statistics

    stats = group_statistics(torch.tensor([0.0, 1.0, 5.0]), torch.zeros(3, dtype=torch.long))
    assert (stats.mean.tolist(), stats.deviation[0].item()) == ([2.0] * 3, pytest.approx((14 / 3) ** 0.5))
    for name in ("mean", "deviation"):
        with pytest.raises((TypeError, UserError)):
            replace(stats, **{name: torch.zeros(3)})


def test_modules_beside_two_files_do_not_mix(tmp_path: Path) -> None:
    from grouprl.config.own_algorithm import load_algorithm, loaded_algorithm

    for folder, low in (("a", 0.1), ("b", 0.3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "numbers_beside.py").write_text(f"low = {low}\n")
        (tmp_path / folder / "mine.py").write_text(
            "from grouprl import Algorithm\nfrom grouprl.algorithms.losses import Clip\n"
            "from numbers_beside import low\nmine = Algorithm(objective=Clip(clip_low=low))\n"
        )
    names = [f"{tmp_path}/{folder}/mine.py:mine" for folder in ("a", "b", "a")]

    def low_of(name: str) -> float:
        load_algorithm(name)
        return loaded_algorithm(name)[0].objective.clip_low  # type: ignore[union-attr, attr-defined, no-any-return]

    assert [low_of(name) for name in names] == [0.1, 0.3, 0.1]
    (tmp_path / "a/numbers_beside.py").write_text("low = 0.2\n")
    assert low_of(names[0]) == 0.2
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.zeros(3), r"\(3,\) of float32"),
        (torch.zeros(2, dtype=torch.complex64), r"\(2,\) of complex64"),
        (torch.tensor([0.0, math.inf]), r"\(2,\) of float32, 1 of its numbers NaN or infinite"),
        (torch.tensor([math.nan, -math.inf]), r"\(2,\) of float32, 2 of its numbers NaN or infinite"),
        ([0.0, 0.0], "list"),
    ],
)
def test_a_tensor_of_a_user_has_the_shape_and_finite_numbers(value: object, got: str) -> None:
    with pytest.raises(UserError, match=rf"^x: expected a tensor \(2,\) of finite numbers, got {got}: correct"):
        check_tensor("x", value, (2,), finite=True)
    assert check_tensor("x", torch.tensor([0.0, math.inf]), (2,)).tolist() == [0.0, math.inf]
