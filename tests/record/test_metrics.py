"""The table of metrics: every recorded name is in it, and the page's definitions are what it makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grouprl.evaluation.metrics import step_metrics
from grouprl.record.metrics import METRICS, metric_of
from grouprl.tasks import load_task
from grouprl.types import RewardOutcome
from recorded_episodes import episode_group
from small_runs import grouprl, metrics

QUICK = (
    "steps=1", "model.threads=1", "rollout.problems_per_step=2", "rollout.group_size=4", "rollout.max_tokens=16",
    "task.difficulty=1", "evaluation.problems=2", "evaluation.samples=0", "rollout.scoring.workers=1",
)  # fmt: skip


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
def test_every_metric_of_a_run_is_in_the_table(tiny: Path, tmp_path: Path, settings: tuple[str, ...]) -> None:
    ended = grouprl("train", "demo", "--model", tiny, *QUICK, *settings, f"runs_dir={tmp_path}", "name=run")
    assert ended.code == 0, ended.err
    (row,) = metrics(tmp_path / "run")
    assert [name for name in row if metric_of(name) is None] == []
    (before, *_) = map(json.loads, (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines())
    assert METRICS["greedy_accuracy"].held_out
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


def test_every_metric_of_episodes_is_in_the_table() -> None:
    found = step_metrics(load_task("word_problems"), [episode_group()], [[RewardOutcome(1.0, {"verdict": 1.0})] * 4])
    assert [name for name in found if metric_of(name) is None] == []
    # 3 + 2 + 1 + 2 turns, and 1 + 2 + 1 + 1 calls, of which two failed.
    assert (found["episodes/turns"], found["episodes/calls"]) == (2.0, 1.25)
    assert found["episodes/faults/timeout"] == found["episodes/faults/json"] == 0.2
    assert found["episodes/ended/turns"] == 0.25
    assert found["tokens/observed"] == 8 + 4 + 20 + 5
