"""Answers that a reward cannot read stop a run before its first step, by file and line."""

import json
import re
from pathlib import Path

import pytest

from small_runs import grouprl, small_settings, write_rows

READABLE = [{"prompt": f"What is {n} + 3?", "answer": str(n + 3)} for n in range(40)]


def rows_with(*bad: tuple[int, str]) -> list[dict[str, str]]:
    rows = [dict(row) for row in READABLE]
    for number, answer in bad:
        rows[number]["answer"] = answer
    return rows


def started(tiny: Path, folder: Path, rows: list[dict[str, str]], *more: str):
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
