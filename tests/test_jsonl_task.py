from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grouprl.tasks.base import Split
from grouprl.tasks.jsonl import Jsonl
from grouprl.tasks.named import load_task
from grouprl.types import UserError
from verifying import verdict

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
ROWS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "level": str(n % 3)} for n in range(30)]


def as_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_list(path: Path, rows: list[Any]) -> None:
    path.write_text(json.dumps(rows))


def as_csv(path: Path, rows: list[Any]) -> None:
    lines = [",".join(rows[0]), *(",".join(f'"{value}"' for value in row.values()) for row in rows)]
    path.write_text("\r\n".join(lines) + "\r\n")


def as_parquet(path: Path, rows: list[Any]) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


KINDS = {".jsonl": as_lines, ".json": as_list, ".csv": as_csv, ".parquet": as_parquet}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_problems(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a{kind}"
    KINDS[kind](path, ROWS)
    task = load_task("jsonl", path=str(path))
    problems = [p for split in SPLITS for p in task.problems(split)]
    assert [len(task.problems(split)) for split in SPLITS] == [24, 3, 3]
    assert sorted(({"prompt": p.prompt, **p.columns} for p in problems), key=str) == sorted(ROWS, key=str)
    assert (task.verifier, task.default_rewards) == ("correct_answer", {"boxed_format": 0.5, "correct_answer": 1.0})
    assert verdict(task, problems[0], task.gold(problems[0]) or "") == 1.0
    assert verdict(task, problems[0], r"\boxed{77}") == 0.0


def test_a_test_file_is_used_whole_and_another_column_may_hold_the_prompt(tmp_path: Path) -> None:
    renamed = [{"question": row["prompt"], "answer": row["answer"]} for row in ROWS]
    as_lines(tmp_path / "a.jsonl", renamed[:20])
    as_list(tmp_path / "b.json", renamed[20:])
    arguments = {"prompt_column": "question", "test_path": str(tmp_path / "b.json")}
    task = load_task("jsonl", path=str(tmp_path / "a.jsonl"), arguments=arguments)
    assert [len(task.problems(split)) for split in SPLITS] == [18, 2, 10]
    assert [p.prompt for p in task.problems("test")] == [row["prompt"] for row in ROWS[20:]]


def test_messages_pass_through_and_a_column_may_hold_the_solution(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"Spell {n}."}], "words": n, "good": f"It is {n}."} for n in "abcd"]
    as_lines(tmp_path / "a.jsonl", rows)
    task = load_task("jsonl", path=str(tmp_path / "a.jsonl"), arguments={"gold_column": "good", "verifier": "regex"})
    problem = task.problems("train")[0]
    assert problem.prompt == ({"role": "user", "content": f"Spell {problem.columns['words']}."},)
    assert task.gold(problem) == f"It is {problem.columns['words']}."
    assert task.verifier == "regex"
    without = load_task("jsonl", path=str(tmp_path / "a.jsonl"))
    assert (without.verifier, without.default_rewards, without.gold(problem)) == (None, {}, None)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"prompt": "1"}\n{"question": "2"}\n', r"a\.jsonl:2: expected a column 'prompt', got question"),
        ("a.jsonl", '{"prompt": ""}\n', r"a\.jsonl:1: expected text in column 'prompt', got ''"),
        ("a.jsonl", '{"prompt": [{"role": "user"}]}\n', r"a\.jsonl:1: expected text in column 'prompt'"),
        ("a.json", '[\n{"prompt": "1"},\n{"prompt": }\n]', r"a\.json:3: expected JSON"),
        ("a.json", '{"prompt": "1"}', r"expected a list of objects in .*a\.json, got a dict"),
        ("a.json", '[{"prompt": "1"}, 7]', r"a\.json, item 2: expected a JSON object, got 7"),
        ("a.json", "[]", "expected at least one row"),
        ("a.json", '[{"question": "1"}]', r"a\.json, item 1: expected a column 'prompt', got question"),
        ("a.csv", "prompt,answer\n1,2\n3\n", r"a\.csv:3: expected the columns prompt, answer, got another number"),
        ("a.csv", "prompt,answer\n1,2,3\n", r"a\.csv:2: expected the columns prompt, answer, got another number"),
        ("a.csv", 'prompt\n"1\n', r"a\.csv:[0-9]: expected CSV, got unexpected end of data"),
        ("a.csv", "prompt,answer\n", "expected at least one row"),
        ("a.txt", "prompt", r"expected a \.jsonl, \.json, \.csv, \.parquet file, got .*a\.txt"),
    ],
)
def test_bad_files_are_told_with_their_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        Jsonl(str(tmp_path / name)).problems("train")


def test_a_quoted_line_break_does_not_shift_the_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,answer\n"two\nlines",1\n,2\n')
    with pytest.raises(UserError, match=r"a\.csv:4: expected text in column 'prompt', got ''"):
        Jsonl(str(tmp_path / "a.csv"))


def test_without_a_file_one_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"write task\.path=FILE\.jsonl"):
        Jsonl().problems("train")
