"""verl's compute_score: what it is given, and what happens without a ground truth."""

import re
from pathlib import Path

import pytest

from grouprl.rewards.calls import Invalid
from grouprl.rewards.functions import ComputeScore, truth_of
from small_runs import grouprl, small_settings, write_rows


def exact(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str == ground_truth)


def of_length(solution_str, ground_truth=None):
    return float(len(solution_str))


def test_a_problem_without_a_ground_truth_is_invalid_and_not_wrong():
    assert ComputeScore(exact)(["7", "7", "8"], ground_truth=["7", None, "7"]) == [
        1.0,
        Invalid("the problem has no ground_truth"),
        0.0,
    ]
    nested = [{"ground_truth": "7"}, {}, None]
    assert ComputeScore(exact)(["7", "7", "8"], reward_model=nested)[0] == 1.0


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [("answer", "7", 2), ("ground_truth", "7", 0), ("reward_model", {"ground_truth": "7"}, 0)],
)
def test_a_missing_column_is_refused_before_training(tiny: Path, tmp_path: Path, column: str, value: object, code: int):
    (tmp_path / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float(len(solution_str) % 3)\n"
    )
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"Say {n}.", column: value} for n in range(20)])
    reward = f"{tmp_path / 'score.py'}:compute_score"
    ended = grouprl(
        "train", "--model", tiny, "--task", rows, "--reward", reward, *small_settings(tmp_path / "runs", steps=1)
    )
    assert ended.code == code, ended.text
    assert code == 0 or "expected problems with the column 'ground_truth' or 'reward_model', got answer" in ended.err


@pytest.mark.parametrize("gone", [(3,), (19,), (2, 5, 11, 17), tuple(range(1, 20))])
def test_rows_without_a_ground_truth_are_named_wherever_they_are(tiny: Path, tmp_path: Path, gone: tuple[int, ...]):
    """The first step has two problems; the file's lines count from 1."""
    (tmp_path / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info): return 1.0\n"
    )
    rows = [{"prompt": f"Say {n}.", "ground_truth": None if n in gone else "7"} for n in range(20)]
    ended = grouprl(
        *("train", "--model", tiny, "--task", write_rows(tmp_path / "rows.jsonl", rows)),
        *("--reward", f"{tmp_path / 'score.py'}:compute_score", *small_settings(tmp_path / "runs", steps=1)),
        "evaluation.split=train",
    )
    assert ended.code == 2, ended.text
    named = [int(line) - 1 for line in re.findall(r"rows\.jsonl:([0-9]+)", ended.err)]
    assert len(named) == min(len(gone), 3)
    assert set(named) <= set(gone)
    assert f"and {len(gone)} of 20 without a value" in ended.err
    assert not list((tmp_path / "runs").glob("*")), "nothing is begun"


def test_a_nested_ground_truth_that_no_row_has_is_refused(tiny: Path, tmp_path: Path):
    (tmp_path / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info): return 1.0\n"
    )
    rows = write_rows(
        tmp_path / "rows.jsonl", [{"prompt": f"Say {n}.", "reward_model": {"style": "rule"}} for n in range(20)]
    )
    reward = f"{tmp_path / 'score.py'}:compute_score"
    ended = grouprl(
        "train", "--model", tiny, "--task", rows, "--reward", reward, *small_settings(tmp_path / "runs", steps=1)
    )
    assert ended.code == 2
    assert "expected problems with the column 'ground_truth' or 'reward_model', got reward_model" in ended.err


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
