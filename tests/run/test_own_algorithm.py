"""An algorithm in a user's file: trained by its name, recorded with its class, and never resumed as another one."""

import re
from pathlib import Path

import pytest

import letter_rewards
from grouprl.config.run import RunConfig, load_config
from small_runs import ROWS, grouprl, metrics, rollouts, small_settings, write_rows

FILE = """
from dataclasses import dataclass, field, replace
from typing import Literal

from grouprl import Algorithm
from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.advantages import group_statistics


@dataclass(frozen=True)
class Doubled(Clip):
    def loss(self, *arguments, **named):
        loss, stats = super().loss(*arguments, **named)
        return 2 * loss, stats


values = Algorithm(name="values", objective=Clip(clip_high=0.35))
doubled = Algorithm(name="doubled", objective=Doubled())


@dataclass(frozen=True)
class Scaled(GroupAdvantage):
    factor: float = 3.0
    names: dict[str, tuple[int, ...]] = field(default_factory=dict)
    scale: Literal["third"] = "third"

    def statistics(self, rewards_N, groups_N):
        found = group_statistics(rewards_N, groups_N, scale="none")
        return replace(found, divisor_N=found.divisor_N * self.factor)


scaled = Algorithm(name="scaled", advantage=Scaled())
"""


def train(tiny: Path, folder: Path, name: str, *more: object):
    write_rows(folder / "rows.jsonl", [{**row, "answer": "1"} for row in ROWS])
    settings = small_settings(folder / "runs", steps=1, name=name)
    reward = f"{letter_rewards.__file__}:letters"
    return grouprl("train", "--model", tiny, "--task", folder / "rows.jsonl", "--reward", reward, *settings, *more)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


def test_values_of_ones_own_are_in_the_record(tiny: Path, tmp_path: Path, file: Path):
    ended = train(tiny, tmp_path, "values", "--algorithm", f"{file}:values")
    assert ended.code == 0, ended.text
    assert load_config(RunConfig, [tmp_path / "runs/values/config.yaml"], []).algorithm.objective.clip_high == 0.35
    ended = grouprl("train", "--resume", tmp_path / "runs/values", "steps=2")
    assert ended.code == 0, ended.text
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_class_of_ones_own_trains_and_is_not_resumed_without_it(tiny: Path, tmp_path: Path, file: Path):
    assert train(tiny, tmp_path, "stock").code == 0
    ended = train(tiny, tmp_path, "doubled", "--algorithm", f"{file}:doubled")
    assert ended.code == 0, ended.text
    losses = [metrics(tmp_path / "runs" / name)[0]["loss"] for name in ("stock", "doubled")]
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-5)
    ended = grouprl("train", "--resume", tmp_path / "runs/doubled", "steps=2")
    assert ended.code == 2
    assert "mine.py.Doubled" in ended.err
    again = ["--resume", tmp_path / "runs/doubled", "steps=2", "--algorithm", f"{file}:doubled"]
    assert grouprl("train", *again).code == 0
    file.write_text(FILE.replace("2 * loss", "3 * loss"))
    ended = grouprl("train", *again[:-3], "steps=3", *again[-2:])
    assert ended.code == 2
    assert "algorithm" in ended.err


def test_options_that_only_its_program_knows_are_recorded_and_bind_a_resume(tiny: Path, tmp_path: Path, file: Path):
    run = tmp_path / "runs/scaled"
    ended = train(tiny, tmp_path, "scaled", "--algorithm", f"{file}:scaled")
    assert ended.code == 0, ended.text
    read = load_config(RunConfig, [run / "config.yaml"], []).algorithm
    assert re.fullmatch(r"mine\.py\.Scaled \w{16} scale='third' factor=3.0 names=\{\}", dict(read.missing)["advantage"])
    rows = rollouts(run, "SELECT reward, advantage FROM completions WHERE group_index = 0")
    mean = sum(reward for reward, _ in rows) / 4
    assert [advantage for _, advantage in rows] == pytest.approx([(reward - mean) / 3 for reward, _ in rows], abs=1e-6)
    assert any(advantage for _, advantage in rows)
    for command in (["train", "--resume", run, "steps=2"], ["replay", run, "1"]):
        ended = grouprl(*command)
        assert ended.code == 2, ended.text
        assert "expected the class mine.py.Scaled" in ended.text
    assert grouprl("report", run).code == 0
    again = ["train", "--resume", run, "--algorithm", f"{file}:scaled"]
    assert grouprl(*again, "steps=2").code == 0
    file.write_text(FILE.replace("Scaled())", "Scaled(factor=4.0))"))  # the same class
    ended = grouprl(*again, "steps=3")
    assert ended.code == 2
    assert "factor=3.0" in ended.text
    assert "factor=4.0" in ended.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nothing.py:mine", "nothing.py: expected a Python file, found none"),
        ("{file}:value", "did you mean 'values'?"),
        ("GRPO", "did you mean 'grpo'?"),
    ],
)
def test_what_is_none_is_named(file: Path, given: str, words: str):
    ended = grouprl("train", "--algorithm", given.format(file=file))
    assert ended.code == 2
    assert words in ended.err


def test_a_file_that_fails_is_one_sentence(tmp_path: Path):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    ended = grouprl("train", "--algorithm", f"{tmp_path / 'broken.py'}:mine")
    assert ended.code == 2
    assert "expected a file that runs, got ZeroDivisionError" in ended.err
