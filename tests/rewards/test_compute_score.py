"""verl's compute_score: what it is given, and what happens without a ground truth."""

import re
from pathlib import Path

import pytest

from grouprl.rewards.calls import Invalid
from grouprl.rewards.functions import ComputeScore, truth_of
from small_runs import Ended, grouprl, small_settings, write_rows


def exact(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str == ground_truth)


def test_a_problem_without_a_ground_truth_is_invalid_and_not_wrong():
    assert ComputeScore(exact)(["7", "7", "8"], ground_truth=["7", None, "7"]) == [
        1.0,
        Invalid("the problem has no ground_truth"),
        0.0,
    ]
    nested = [{"ground_truth": "7"}, {}, None]
    assert ComputeScore(exact)(["7", "7", "8"], reward_model=nested)[0] == 1.0


def trained(tiny: Path, folder: Path, rows: list[dict[str, object]]) -> Ended:
    (folder / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float(len(solution_str) % 3)\n"
    )
    reward, data = f"{folder / 'score.py'}:compute_score", write_rows(folder / "rows.jsonl", rows)
    settings = [*small_settings(folder / "runs", steps=1), "evaluation.split=train"]
    return grouprl("train", "--model", tiny, "--task", data, "--reward", reward, *settings)


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [("answer", "7", 2), ("reward_model", {"style": "rule"}, 2), ("reward_model", {"ground_truth": "7"}, 0)],
)
def test_a_missing_column_is_refused_before_training(tiny: Path, tmp_path: Path, column: str, value: object, code: int):
    ended = trained(tiny, tmp_path, [{"prompt": f"Say {n}.", column: value} for n in range(20)])
    assert ended.code == code, ended.text
    said = f"expected problems with the column 'ground_truth' or 'reward_model', got {column}"
    assert (said in ended.err) == (code == 2)


@pytest.mark.parametrize("gone", [(19,), (2, 5, 11, 17)])
def test_rows_without_a_ground_truth_are_named_wherever_they_are(tiny: Path, tmp_path: Path, gone: tuple[int, ...]):
    """The first step has two problems; the file's lines count from 1."""
    rows = [{"prompt": f"Say {n}.", "ground_truth": None if n in gone else "7"} for n in range(20)]
    ended = trained(tiny, tmp_path, rows)
    assert ended.code == 2, ended.text
    named = [int(line) - 1 for line in re.findall(r"rows\.jsonl:([0-9]+)", ended.err)]
    assert len(named) == min(len(gone), 3)
    assert set(named) <= set(gone)
    assert f"and {len(gone)} of 20 without a value" in ended.err
    assert not list((tmp_path / "runs").glob("*")), "nothing is begun"


@pytest.mark.parametrize(
    ("columns", "truth"),
    [
        ({"ground_truth": "7"}, "7"),
        ({"ground_truth": "", "reward_model": {"ground_truth": "8"}}, ""),
        ({"ground_truth": None, "reward_model": {"style": "rule", "ground_truth": ["8", "9"]}}, ["8", "9"]),
        ({"reward_model": {"ground_truth": 0}}, 0),
        ({"reward_model": {"style": "rule"}}, None),
        ({"reward_model": None}, None),
        ({"reward_model": "7"}, None),
        ({"answer": "7"}, None),
    ],
)
def test_where_a_ground_truth_is_read(columns: dict[str, object], truth: object):
    assert truth_of(columns) == truth
