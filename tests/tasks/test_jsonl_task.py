from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grouprl.tasks.base import Split
from grouprl.tasks.named import load_task
from grouprl.tasks.rows import Jsonl
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
        ("a.jsonl", '{"question": "2"}\n', r"a\.jsonl:1: .* with task\.arguments\.prompt_column=NAME"),
        ("a.jsonl", '{"prompt": "1"}\n{"prompt": "2", "x": [NaN]}\n', r"a\.jsonl:2: expected finite .* write null"),
        ("a.jsonl", '{"prompt": "1", "x": -Infinity}\n', r"a\.jsonl:1: expected finite numbers"),
        ("a.jsonl", '{"prompt": "1", "x": 1e999}\n', r"a\.jsonl:1: expected finite numbers"),
        ("a.jsonl", f'{{"prompt": "1", "x": {"7" * 5000}}}\n', r"a\.jsonl:1: expected finite .* 1000 digits as text"),
        ("a.jsonl", f'{{"prompt": {"[" * 100_000}{"]" * 100_000}}}\n', r"a\.jsonl:1: .* nested too deeply"),
        ("a.jsonl", '{"prompt": "a\\ud800"}\n', r"a\.jsonl:1: expected Unicode text in column 'prompt', got half"),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": "\\udc00"}]}\n', r"a\.jsonl:1: expected Unicode text"),
        ("a.jsonl", '{"prompt": "1", "answer": "\\ud800"}\n', r"a\.jsonl:1: expected Unicode text in column 'answer'"),
        ("a.jsonl", '{"prompt": "1", "answer": "7"}\n{"prompt": "2", "answer": []}', r"a\.jsonl:2: .* got \[\]"),
        ("a.json", '[{"prompt": "1"}, {"prompt": NaN}]', r"a\.json, item 2: expected finite numbers"),
        ("a.json", "[" * 100_000, r"a\.json: expected JSON, got brackets nested too deeply"),
        ("a.json", '[\n{"prompt": "1"},\n{"prompt": }\n]', r"a\.json:3: expected JSON"),
        ("a.json", '{"prompt": "1"}', r"expected a list of objects in .*a\.json, got a dict"),
        ("a.json", '[{"prompt": "1"}, 7]', r"a\.json, item 2: expected a JSON object, got 7"),
        ("a.json", "[]", "expected at least one row"),
        ("a.json", '[{"question": "1"}]', r"a\.json, item 1: expected a column 'prompt', got question"),
        ("a.csv", "prompt,answer\n1,2\n3\n", r"a\.csv:3: expected 2 values \(prompt, answer\), got 1: fix"),
        ("a.csv", "prompt,answer\n1,2,3\n", r"a\.csv:2: expected 2 values \(prompt, answer\), got 3: fix"),
        ("a.csv", 'prompt\n"1\n', r"a\.csv:[0-9]: expected CSV, got unexpected end of data"),
        ("a.csv", "prompt,answer\n", "expected at least one row"),
        ("a.tsv", "prompt\tanswer\n1\t2\n1, 2\n", r"a\.tsv:3: expected 2 values \(prompt, answer\), got 1: fix"),
        ("a.jsonl.gz", "prompt", r"a\.jsonl\.gz: expected a complete gzip file"),
        ("a.xlsx", "prompt", r"expected a .* file, got .*a\.xlsx: convert it \(a spreadsheet: save it as \.csv\)"),
        ("a.csv", "prompt,answer\n1,2\n" + "3\n" * 12, r"a\.csv:3: .*(\n.*){8}\n.*a\.csv:12: .*\nand 2 more rows"),
        ("a.jsonl", '{"prompt": 1}\n{"prompt": "1"}\n{"q": 1}', r"a\.jsonl:1: .* got 1: .*\n.*a\.jsonl:3: .* got q"),
        ("a.txt", "prompt", r"expected a \.jsonl, \.parquet, \.json, \.csv, \.tsv file, got .*a\.txt"),
    ],
)
def test_bad_files_are_reported_with_their_line(tmp_path: Path, name: str, text: str, message: str) -> None:
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


def test_a_null_is_no_answer_and_the_end_of_a_name_may_be_in_capitals(tmp_path: Path) -> None:
    as_lines(tmp_path / "A.JSONL", [*ROWS, {"prompt": "?", "answer": None}])
    task = load_task("jsonl", path=str(tmp_path / "A.JSONL"))
    assert (task.verifier, task.default_rewards) == (None, {})


def test_own_columns_messages_and_a_verifier_in_a_file(tmp_path: Path) -> None:
    as_lines(tmp_path / "a.jsonl", [{"question": row["prompt"], "result": row["answer"]} for row in ROWS])
    columns = {"prompt_column": "question", "answer_column": "result", "messages": True}
    task = load_task("jsonl", path=str(tmp_path / "a.jsonl"), arguments=columns)
    problem = task.problems("test")[0]
    assert [message["role"] for message in problem.prompt] == ["user"]  # type: ignore[index]
    assert verdict(task, problem, rf"\boxed{{{problem.columns['answer']}}}") == 1.0
    in_file = load_task("jsonl", path=str(tmp_path / "a.jsonl"), arguments={**columns, "verifier": "mine.py:near"})
    assert (in_file.verifier, in_file.default_rewards) == ("mine.py:near", {})
    assert in_file.problems("test") == task.problems("test")
    with pytest.raises(
        UserError, match=r"a\.jsonl:1: expected a column 'results' .* task\.arguments\.answer_column=NAME"
    ):
        load_task("jsonl", path=str(tmp_path / "a.jsonl"), arguments={**columns, "answer_column": "results"})


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [("messages", "yes", "expected true or false, got 'yes'"), ("verifier", 7, "expected text, got 7")],
)
def test_settings_of_another_kind_are_refused(argument: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=rf"task\.arguments\.{argument}: {message}"):
        load_task("jsonl", arguments={argument: value})
