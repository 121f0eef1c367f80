"""A whole run whose reward misbehaves for some completions: statistics skip them, the run counts and shows them."""

import json
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pytest

from grouprl import Trainer
from misbehaving import moody
from small_runs import ROWS, Ended, grouprl, gsm8k_row, metrics, rollouts, small_config, small_settings, write_rows
from variants import variant

REASONS = {
    0: "moody raised ValueError: not today (", 1: "moody took longer than 0.5 s",
    2: "moody ended its process with code 7", 3: "moody gave nan", 4: "moody cannot read this",
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config(
        tmp_path_factory.mktemp("moody"),
        steps=3,
        rollout={
            "problems_per_step": 4,
            "group_size": 8,
            "max_tokens": 8,
            "scoring": {"max_invalid": 1.0, "seconds": 0.5},
        },
    )
    return Trainer(tiny, ROWS, [moody], variant(kl_coef=0.0), config).train().directory


def test_each_completion_has_the_reason_that_is_its_own(directory: Path) -> None:
    rows = rollouts(directory, "SELECT token_ids, text, reward, invalid_reason, components FROM completions")
    assert len(rows) == 96
    moods = [sum(np.frombuffer(ids, "<i4").tolist()) % 17 for ids, *_ in rows]
    assert set(REASONS) <= set(moods)
    for mood, (_, text, reward, reason, components) in zip(moods, rows, strict=True):
        if mood in REASONS:
            assert (reward, json.loads(components)) == (None, {"moody": None})
            assert reason.startswith(REASONS[mood])
        else:
            assert (reward, reason) == (float(len(text)), None)


def test_groups_are_compared_without_the_invalid_ones(directory: Path) -> None:
    groups: dict[tuple[int, int], list[tuple[float | None, float]]] = {}
    for step, group, reward, advantage in rollouts(
        directory, "SELECT step, group_index, reward, advantage FROM completions ORDER BY 1, 2, completion_index"
    ):
        groups.setdefault((step, group), []).append((reward, advantage))
    for rows in groups.values():
        valid = [reward for reward, _ in rows if reward is not None]
        mean, deviation = fmean(valid), pstdev(valid)
        for reward, advantage in rows:
            expected = 0.0 if reward is None or not deviation else (reward - mean) / (deviation + 1e-6)
            assert advantage == pytest.approx(expected, abs=1e-4)


def test_they_are_counted_and_shown(directory: Path) -> None:
    found = rollouts(directory, "SELECT step, AVG(reward IS NULL) FROM completions GROUP BY 1")
    assert [(row["step"], row["frac_invalid"]) for row in metrics(directory)] == found
    page = (directory / "report.html").read_text()
    assert "Completions with invalid rewards" in page
    assert all(reason.split(" (")[0] in page for reason in REASONS.values())


def command(tiny: Path, place: Path, reward: str, *more: str) -> Ended:
    data = write_rows(place / "data.jsonl", [gsm8k_row(n) for n in range(30)])
    path = place / "my_rewards.py"
    path.write_text(reward)
    settings = [*small_settings(place), "task.name=gsm8k", f"task.path={data}", "--name", "run"]
    return grouprl("train", "--model", tiny, *settings, "--reward", f"{path}:mine=2", *more)


def test_a_reward_from_a_file_is_recorded_under_its_name_with_its_weight(tiny: Path, tmp_path: Path) -> None:
    ended = command(
        tiny,
        tmp_path,
        "def mine(completions, answer):\n    return [len(text[0]['content']) + len(gold) / 100 for text, gold in "
        "zip(completions, answer)]\n",
        "--reward",
        "boxed_format",
        "steps=1",
    )
    assert ended.code == 0, ended.text
    query = "SELECT text, reward, components, columns FROM completions JOIN problems USING (problem_id)"
    for text, reward, components, columns in rollouts(tmp_path / "run", query):
        value = len(text) + len(json.loads(columns)["answer"]) / 100
        assert json.loads(components) == {"mine": pytest.approx(value), "boxed_format": 0.0}
        assert reward == pytest.approx(2 * value)


def test_a_few_failures_are_told_beside_their_step(tiny: Path, tmp_path: Path) -> None:
    ended = command(
        tiny,
        tmp_path,
        "def mine(completions, completion_ids):\n    return [1 / (ids[0] % 3) for ids in completion_ids]\n",
        "rollout.scoring.max_invalid=1.0",
    )
    assert ended.code == 0, ended.text
    assert "of 8 completions invalid: mine raised ZeroDivisionError: division by zero (my_rewards.py:2)" in ended.text
