"""Data files, tables and data sets as people have them become the same problems; what is wrong has its line."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pyarrow
import pytest
from pyarrow import parquet

from grouprl.config.run import RunConfig, TaskConfig, load_config
from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.tasks import load_task, task_from_list
from grouprl.tasks.base import Split, Task
from grouprl.tasks.files import LONGEST_ROW, read_rows, read_splits, text_or_messages
from grouprl.tasks.rows import Jsonl
from grouprl.types import UserError
from verifying import verdict

ROWS = [{"prompt": f"{n}\u2028+ 1 = ?", "answer": str(n + 1)} for n in range(4)]  # no end of a line
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.json", LINES),
        ("lines.json", LINES.replace("\n", "\r\n") + "\r\n"),
        ("lines.json", "\ufeff" + LINES + "\n\n"),
        ("list.jsonl", json.dumps(ROWS)),
        ("list.jsonl", "\n" + json.dumps(ROWS, indent=2)),
        ("bom.csv", "\ufeffprompt,answer\n" + "".join(f"{row['prompt']},{row['answer']}\n" for row in ROWS)),
    ],
)
def test_the_content_of_a_file_decides_its_form(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert [row for _, row in read_rows(str(tmp_path / name))] == ROWS


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", LINES + "\n{broken", r"a\.json:5: expected one JSON object"),
        ("a.parquet", "no table", r"expected a Parquet file at .*a\.parquet"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_rows(str(tmp_path / name))


def test_a_long_or_odd_field_of_a_csv_is_read(tmp_path: Path) -> None:
    """Python's own limit is 131,072 characters."""
    long, odd = "x" * 200_000, "a\0b"
    (tmp_path / "a.csv").write_text(f'prompt,answer\n"{long}",1\n"{odd}",2\n', encoding="utf-8")
    assert [row["prompt"] for _, row in read_rows(str(tmp_path / "a.csv"))] == [long, odd]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_row_of_more_than_the_limit_is_named(tmp_path: Path, name: str) -> None:
    long = "y" * (LONGEST_ROW + 1)
    texts = {
        "a.jsonl": f'{{"prompt": "{long}"}}',
        "a.json": f'[{{"prompt": ["{long}"]}}]',
        "a.csv": f"prompt\n{long}\n",
    }
    (tmp_path / name).write_text(texts[name])
    with pytest.raises(UserError, match=r"a\.(jsonl:1|json, item 1|csv:\d): expected .*33,?554,?432"):
        read_rows(str(tmp_path / name))


def messages(*contents: Any) -> str:
    return json.dumps({"prompt": [{"role": "user", "content": content} for content in contents]})


TEXT = {"type": "text", "text": "2 + "}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


def test_text_parts_are_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(messages([TEXT, {**TEXT, "text": "2 = ?"}], "plain"))
    (problem,) = load_task("jsonl", path=str(tmp_path / "a.jsonl")).problems("train")
    assert [message["content"] for message in problem.prompt] == ["2 + 2 = ?", "plain"]  # type: ignore[index]


@pytest.mark.parametrize("content", [[TEXT, IMAGE], [{"type": "image"}], [{"type": "text"}], ["2 + 2"], [7]])
def test_other_parts_are_refused(tmp_path: Path, content: Any) -> None:
    (tmp_path / "a.jsonl").write_text(messages([content] if isinstance(content, int) else content))
    with pytest.raises(UserError, match=r"a\.jsonl:1: expected text in the messages of column 'prompt', got a part"):
        load_task("jsonl", path=str(tmp_path / "a.jsonl"))


def write_all(folder: Path, files: Sequence[str]) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rows = [{"prompt": f"{name} {n}", "question": f"{name} {n}", "answer": f"#### {n}"} for n in range(3)]
        if name.endswith(".parquet"):
            parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)
        else:
            (folder / name).write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    ("files", "train"),
    [
        (["main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet", "socratic/train.jsonl"], 3),
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test.jsonl"], 6),
        (["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"], 6),
        (["mine/train.jsonl", "mine/test.jsonl", "README.md"], 3),
        (["pens_train.jsonl", "pens_test.jsonl", "constrained.jsonl"], 3),
    ],
)
def test_a_folder_is_read_as_the_hub_has_it(tmp_path: Path, files: list[str], train: int) -> None:
    write_all(tmp_path, files)
    task = load_task("jsonl", path=str(tmp_path))
    splits: tuple[Split, ...] = ("train", "validation")
    assert (sum(len(task.problems(split)) for split in splits), len(task.problems("test"))) == (train, 3)
    first = task.problems("test")[0]
    assert first.place.startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["data/train-00000-of-00003.parquet", "data/train-00002-of-00003.parquet"], "expected all 3 files of train"),
        (["a/train.jsonl", "b/train.jsonl"], "got a, b: name the folder"),
        (["a/words.jsonl"], r"expected a data file at .*train\.jsonl"),
    ],
)
def test_a_folder_that_is_not_whole_or_not_clear_is_refused(tmp_path: Path, files: list[str], message: str) -> None:
    write_all(tmp_path, files)
    with pytest.raises(UserError, match=message):
        load_task("jsonl", path=str(tmp_path))


def test_a_too_long_prompt_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    problem = next(one for one in load_task("jsonl", path=str(tmp_path / "a.jsonl")).problems("train"))
    line = ROWS.index({"prompt": problem.prompt, **problem.columns}) + 1
    with pytest.raises(UserError, match=rf"problem 'jsonl/train/{line - 1}' \(.*a\.jsonl:{line}\): expected a prompt"):
        prompt_token_ids(problem, load_tokenizer("abacus"), longest=1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("twice.csv", "prompt,answer,answer\n1 + 1 = ?,2,3\n"),
        ("twice.csv", "prompt,answer, answer\n1 + 1 = ?,2,3\n"),
        ("twice.jsonl", LINES + '\n{"prompt": "1 + 9 = ?", "answer": "10", "answer": "11"}\n'),
        ("twice.json", '[{"prompt": "1 + 9 = ?", "info": {"a": 1, "a": 2}}]'),
        ("twice.parquet", ""),
    ],
)
def test_a_column_given_twice_is_refused_since_one_would_be_lost(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        columns = [pyarrow.array(["a"]), pyarrow.array(["1"]), pyarrow.array(["2"])]
        parquet.write_table(pyarrow.Table.from_arrays(columns, names=["prompt", "answer", "answer"]), path)
    else:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"twice\..*expected each column once, got one of .* twice: rename it"):
        read_rows(str(path))


def test_spaces_around_the_names_of_a_csv_are_no_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt, answer \n1 + 1 = ?,2\n")
    assert read_rows(str(tmp_path / "a.csv"))[0][1] == {"prompt": "1 + 1 = ?", "answer": "2"}


def test_tabs_and_compressed_files_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}, or?", "answer": str(number)} for number in range(3)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    table = "prompt,answer\n" + "".join(f'"{row["prompt"]}",{row["answer"]}\n' for row in rows)
    (tmp_path / "a.tsv").write_text(
        table.replace('"', "").replace(", or", ";or").replace(",", "\t").replace(";or", ", or")
    )
    for name, text in (("a.jsonl.gz", lines), ("a.json.gz", json.dumps(rows)), ("a.CSV.gz", table)):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    for path in tmp_path.iterdir():
        assert [row for _, row in read_rows(str(path))] == rows, path
    (tmp_path / "train").mkdir()
    (tmp_path / "train-00000-of-00001.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert len((read_splits(str(tmp_path)) or {})["train"]) == 3


@pytest.mark.parametrize("several", [False, True])
def test_a_folder_of_save_to_disk(tmp_path: Path, several: bool) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"prompt": f"{number}?", "answer": number} for number in range(4)])
    saved = datasets.DatasetDict({"train": rows, "dev": rows}) if several else rows
    saved.save_to_disk(str(tmp_path / "saved"))
    parts = read_splits(str(tmp_path / "saved")) or {}
    assert list(parts) == (["train", "validation"] if several else ["train"])
    assert [row for _, row in parts["train"]] == list(rows)


@pytest.mark.parametrize(("name", "column"), [("gsm8k", "question"), ("math", "problem")])
def test_a_single_set_of_save_to_disk_is_cut_as_a_file_is(tmp_path: Path, name: str, column: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{column: f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(60)])
    rows.save_to_disk(str(tmp_path / "one"))
    parts = [load_task(name, path=str(tmp_path / "one")).problems(split) for split in ("train", "validation", "test")]
    assert sum(map(len, parts)) == 60
    assert all(parts)
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "dict"))
    with pytest.raises(UserError, match=r"expected a split test in .*dict, got train"):
        load_task(name, path=str(tmp_path / "dict")).problems("train")


def test_a_call_has_no_text_and_a_developer_speaks_as_the_system() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    asked = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "f?"}]
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    row = ("here", {"prompt": [*asked, called, {"role": "tool", "content": "3"}]})
    read = text_or_messages(row, "prompt")
    assert read[0] == {"role": "system", "content": "Be short."}  # type: ignore[comparison-overlap]
    assert read[2] == {**called, "content": ""}  # type: ignore[comparison-overlap]
    with pytest.raises(UserError, match="expected text in column 'prompt'"):
        text_or_messages(("here", {"prompt": [{"role": "assistant", "content": None}]}), "prompt")


SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SUMS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "level": str(n % 3)} for n in range(30)]


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
    KINDS[kind](path, SUMS)
    task = load_task("jsonl", path=str(path))
    problems = [p for split in SPLITS for p in task.problems(split)]
    assert [len(task.problems(split)) for split in SPLITS] == [24, 3, 3]
    assert sorted(({"prompt": p.prompt, **p.columns} for p in problems), key=str) == sorted(SUMS, key=str)
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
    as_lines(tmp_path / "A.JSONL", [*SUMS, {"prompt": "?", "answer": None}])
    task = load_task("jsonl", path=str(tmp_path / "A.JSONL"))
    assert (task.verifier, task.default_rewards) == (None, {})


def test_own_columns_messages_and_a_verifier_in_a_file(tmp_path: Path) -> None:
    as_lines(tmp_path / "a.jsonl", [{"question": row["prompt"], "result": row["answer"]} for row in SUMS])
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


TABLE = [{"prompt": f"{number} + 1 = ?", "answer": str(number + 1), "level": number % 3} for number in range(40)]


def problems(task: Task) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    splits: tuple[Split, ...] = get_args(Split)
    return {split: [(one.prompt_text, dict(one.columns)) for one in task.problems(split)] for split in splits}


def in_polars(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(rows)


def in_pandas(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def in_dataset(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(rows)


FORMS: list[Callable[[list[dict[str, Any]]], Any]] = [in_polars, in_pandas, in_dataset, iter, pyarrow.Table.from_pylist]


@pytest.mark.parametrize("form", FORMS)
def test_rows_in_any_form_are_those_of_the_list(form: Callable[[list[dict[str, Any]]], Any]) -> None:
    assert problems(task_from_list(form(TABLE))) == problems(task_from_list(TABLE))
    found = problems(task_from_list({"train": form(TABLE[:20]), "valid": form(TABLE[20:30]), "test": form(TABLE[30:])}))
    assert [text for text, _ in found["validation"]] == [row["prompt"] for row in TABLE[20:30]]
    assert [text for text, _ in found["test"]] == [row["prompt"] for row in TABLE[30:]]
    assert [text for text, _ in found["train"]] == [row["prompt"] for row in TABLE[:20]]


def test_the_splits_of_a_data_set_are_splits() -> None:
    datasets = pytest.importorskip("datasets")
    parts = datasets.DatasetDict({"train": in_dataset(TABLE[:30]), "test": in_dataset(TABLE[30:])})
    assert len(task_from_list(parts).problems("test")) == 10


def test_a_missing_value_of_pandas_is_none_not_nan() -> None:
    rows = [{"prompt": f"Say {number}.", "hint": math.nan if number % 2 else 1.5} for number in range(20)]
    found = task_from_list(in_pandas(rows)).problems("train")
    assert {one.columns["hint"] for one in found} == {None, 1.5}


def test_a_stream_is_refused_before_it_is_read() -> None:
    with pytest.raises(UserError, match=r"list\(data.take"):
        task_from_list(in_dataset(TABLE).to_iterable_dataset())


@pytest.mark.parametrize(
    "data", [{"prompt": "x"}, {"test": TABLE}, {"train": TABLE, "dev": TABLE, "valid": TABLE}, 7, {}]
)
def test_what_holds_no_rows_is_a_sentence(data: Any) -> None:
    with pytest.raises(UserError, match="task: expected"):
        task_from_list(data)


def test_a_data_file_in_place_of_a_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("prompt,answer\n" + "".join(f"{row['prompt']},{row['answer']}\n" for row in TABLE))
    settings = load_config(RunConfig, [], [f"task={path}"]).task
    assert settings == TaskConfig(name="jsonl", path=str(path))
    assert len(load_task(**settings.model_dump()).problems("train")) > 20
    assert load_config(RunConfig, [], ["task=hub:openai/gsm8k"]).task.path == "hub:openai/gsm8k"
