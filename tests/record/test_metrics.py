"""The table of metrics in docs/run_directory.md: every recorded name is in it, and the page says the same of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metric_docs import DEFINITIONS, HELD_OUT, METRICS, key_of, plain
from small_runs import grouprl, metrics

QUICK = (
    "steps=1", "threads=1", "rollout.problems_per_step=2", "rollout.group_size=4", "rollout.max_tokens=16",
    "evaluation.problems=2", "evaluation.samples=0", "scoring.workers=1",
)  # fmt: skip


def test_the_docs_and_the_page_have_the_same_metrics() -> None:
    assert list(DEFINITIONS) == [*METRICS, *HELD_OUT]
    assert list(HELD_OUT) == ["greedy_accuracy", "pass_at_1", "pass_at_8"]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_docs_and_the_page_say_the_same_of_a_metric(name: str) -> None:
    row = METRICS.get(name) or HELD_OUT[name]
    assert DEFINITIONS[name]["is"] == plain(row["meaning"])
    if name in METRICS:
        assert set(row) == {"key", "meaning", "formula", "unit", "TRL's name"}
        units = row["unit"].split(", ")  # of all metrics in the row
        assert DEFINITIONS[name]["unit"] in ["", *units] if len(units) > 1 else units


@pytest.mark.parametrize(
    "settings",
    [
        ("algorithm=ppo", "algorithm.correction=truncate"),
        ("algorithm=grpo_process", "algorithm.entropy_coef=0.01", "algorithm.kl_target=0.1"),
        ("algorithm=dapo", "algorithm.entropy_share=0.5"),
    ],
    ids=lambda settings: settings[0],
)
def test_every_metric_of_a_run_is_in_the_table(tmp_path: Path, settings: tuple[str, ...]) -> None:
    ended = grouprl("train", "demo", *QUICK, *settings, f"runs_dir={tmp_path}", "name=run")
    assert ended.code == 0, ended.err
    (row,) = metrics(tmp_path / "run")
    assert [name for name in row if key_of(name) is None] == []
    (before, *_) = map(json.loads, (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines())
    assert "greedy_accuracy" in before


def test_names_with_a_part_of_their_own() -> None:
    for name, expected in (
        ("rewards/correct_answer/mean", "rewards/NAME/mean"),
        ("rewards/soft_overlong/mean", "rewards/soft_overlong/mean"),
        ("boxed_share", "NAME_share"),
        ("reward", "reward"),
    ):
        assert key_of(name) == expected
    assert key_of("rewards/correct_answer") is key_of("nonsense") is None


def test_every_metric_says_what_to_worry_about() -> None:
    assert all(found["is"] and found["worry"] and found["label"] for found in DEFINITIONS.values())
