"""Data files as people have them: names that say another form, long fields, text parts, folders of the hub."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.tasks import load_task
from grouprl.tasks.base import Split
from grouprl.tasks.files import LONGEST_ROW, read_rows, read_splits, text_or_messages
from grouprl.types import UserError

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
