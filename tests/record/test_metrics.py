"""The table of metrics: every recorded name is in it, and the docs and the page are what it makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grouprl.record.metric_tables import DEFINITIONS, definitions_json, docs_table, with_table
from grouprl.record.metrics import HELD_OUT, METRICS, metric_of
from small_runs import grouprl, metrics

PAGE = Path(__file__).parents[2] / "docs" / "run_directory.md"
QUICK = (
    "steps=1", "model.threads=1", "rollout.problems_per_step=2", "rollout.group_size=4", "rollout.max_tokens=16",
    "evaluation.problems=2", "evaluation.samples=0", "rollout.scoring.workers=1",
)  # fmt: skip


def test_the_docs_and_the_page_are_made_from_the_table() -> None:
    """After a change: python -m grouprl.record.metric_tables."""
    text = PAGE.read_text(encoding="utf-8")
    assert docs_table() in text
    assert with_table(text) == text
    assert DEFINITIONS.read_text(encoding="utf-8") == definitions_json()


@pytest.mark.parametrize(
    "settings",
    [
        ("algorithm=ppo", "algorithm.correction=truncate"),
        (
            "algorithm=grpo_process",
            "algorithm.entropy_coef=0.01",
            "algorithm.entropy_target=0.2",
            "algorithm.kl_target=0.1",
        ),
        ("algorithm=dapo", "algorithm.entropy_share=0.5"),
    ],
    ids=lambda settings: settings[0],
)
def test_every_metric_of_a_run_is_in_the_table(tmp_path: Path, settings: tuple[str, ...]) -> None:
    ended = grouprl("train", "demo", *QUICK, *settings, f"runs_dir={tmp_path}", "name=run")
    assert ended.code == 0, ended.err
    (row,) = metrics(tmp_path / "run")
    assert [name for name in row if metric_of(name) is None] == []
    (before, *_) = map(json.loads, (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines())
    assert metric_of("greedy_accuracy") in HELD_OUT
    assert "greedy_accuracy" in before


def test_names_with_a_part_of_their_own() -> None:
    for name, expected in (
        ("rewards/correct_answer/mean", "rewards/NAME/mean"),
        ("rewards/soft_overlong/mean", "rewards/soft_overlong/mean"),
        ("boxed_share", "NAME_share"),
        ("reward", "reward"),
    ):
        found = metric_of(name)
        assert found is not None
        assert found.name == expected
    assert metric_of("rewards/correct_answer") is metric_of("nonsense") is None


def test_names_are_given_once_and_every_metric_says_what_to_worry_about() -> None:
    names = [metric.name for metric in (*METRICS, *HELD_OUT)]
    assert len(set(names)) == len(names)
    assert all(metric.meaning and metric.worry and metric.label for metric in (*METRICS, *HELD_OUT))
