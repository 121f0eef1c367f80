"""What a reward needs of the rows is found before the first step, by file and line: answers it reads, verl's truths."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grouprl.rewards.calls import Invalid
from grouprl.rewards.functions import ComputeScore, truth_of
from small_runs import Ended, grouprl, small_settings, write_rows

READABLE = [{"prompt": f"What is {n} + 3?", "answer": str(n + 3)} for n in range(40)]


def rows_with(*bad: tuple[int, str]) -> list[dict[str, str]]:
    rows = [dict(row) for row in READABLE]
    for number, answer in bad:
        rows[number]["answer"] = answer
    return rows


def started(tiny: Path, folder: Path, rows: Sequence[dict[str, Any]], *more: str) -> Ended:
    write_rows(folder / "rows.jsonl", rows)
    settings = small_settings(folder / "runs", steps=1)
    return grouprl("train", "--model", tiny, "--task", folder / "rows.jsonl", *settings, *more)


def test_all_are_counted_and_the_first_are_named(tiny: Path, tmp_path: Path):
    pytest.importorskip("math_verify")
    bad = [(6, r"\lfloor n/2 \rfloor"), (19, r"0.\overline{3}"), (30, r"\sum_{i=1}^n i"), (33, r"\lfloor x \rfloor")]
    ended = started(tiny, tmp_path, rows_with(*bad), "--reward", "math_verify", "evaluation.split=train")
    assert ended.code == 2, ended.text
    assert "got 4 that it does not, in" in ended.err
    for line in (7, 20, 31):
        assert f"rows.jsonl:{line} (" in ended.err
    assert "and 1 more" in ended.err
    assert not list((tmp_path / "runs").glob("*")), "nothing is begun"


def test_the_rows_of_a_mixture_are_read_too(tiny: Path, tmp_path: Path):
    pytest.importorskip("math_verify")
    rows = [
        {"problem": row["prompt"], "answer": row["answer"]}
        for row in rows_with(*((n, r"0.\overline{3}") for n in range(6, 12)))
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    parts = f"task.arguments={{m: {{name: math, path: {tmp_path / 'rows.jsonl'}}}, countdown: 1}}"
    settings = small_settings(tmp_path / "runs", steps=1)
    ended = grouprl("train", "--model", tiny, "--task", "mixture", parts, *settings)
    assert ended.code == 2, ended.text
    assert re.search(r"got [2-6] that it does not, in \S*rows\.jsonl:([789]|1[0-2]) \(", ended.err)


def test_a_users_own_reward_is_not_called_before_the_run(tiny: Path, tmp_path: Path):
    calls = tmp_path / "calls"
    (tmp_path / "mine.py").write_text(
        "def mine(completions, answer, **_):\n"
        f"    open({json.dumps(str(calls))}, 'a').write(repr(completions) + '\\n')\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    ended = started(tiny, tmp_path, READABLE, "--reward", f"{tmp_path / 'mine.py'}:mine")
    assert ended.code == 0, ended.text
    assert "['']" not in calls.read_text().splitlines()


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


SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return float(len(solution_str) % 3)
"""


def scored(tiny: Path, folder: Path, rows: list[dict[str, object]]) -> Ended:
    (folder / "score.py").write_text(SCORE)
    return started(tiny, folder, rows, "--reward", f"{folder / 'score.py'}:compute_score", "evaluation.split=train")


def test_a_missing_column_is_refused_before_training_and_one_that_is_there_is_read(tiny: Path, tmp_path: Path):
    for column, value in (("answer", "7"), ("reward_model", {"style": "rule"})):
        ended = scored(tiny, tmp_path, [{"prompt": f"Say {n}.", column: value} for n in range(20)])
        assert ended.code == 2, ended.text
        assert f"expected problems with the column 'ground_truth' or 'reward_model', got {column}" in ended.err
    rows = [{"prompt": f"Say {n}.", "reward_model": {"ground_truth": "7"}} for n in range(20)]
    assert scored(tiny, tmp_path, rows).code == 0


def test_rows_without_a_ground_truth_are_named_wherever_they_are(tiny: Path, tmp_path: Path):
    """The first step has two problems; the file's lines count from 1."""
    gone = (2, 5, 11, 17)
    ended = scored(
        tiny, tmp_path, [{"prompt": f"Say {n}.", "ground_truth": None if n in gone else "7"} for n in range(20)]
    )
    assert ended.code == 2, ended.text
    named = [int(line) - 1 for line in re.findall(r"rows\.jsonl:([0-9]+)", ended.err)]
    assert len(named) == 3
    assert set(named) <= set(gone)
    assert "and 4 of 20 without a value" in ended.err
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
