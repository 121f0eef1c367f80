"""What a run trains on and what it holds out, for every form of data: counted, and compared with the rows given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grouprl.tasks import load_task, task_from_list
from grouprl.tasks.base import Split, Task
from grouprl.tasks.held_out import evaluated_on, trained_on_the_rest
from grouprl.tasks.mixture import Mixture, MixturePart

ROWS = [
    {"prompt": f"{n} + 1 = ?", "question": f"{n} + 1 = ?", "problem": f"{n} + 1 = ?", "answer": f"#### {n + 1}"}
    for n in range(40)
]
EVAL = [
    {**row, "prompt": f"E {row['prompt']}", "question": f"E {row['question']}", "problem": f"E {row['problem']}"}
    for row in ROWS[:6]
]


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def text(one: Any) -> str:
    return str(one.columns.get("question") or one.prompt_text).rpartition("\n")[2]


def texts(task: Task, split: Split) -> list[str]:
    return sorted(map(text, task.problems(split)))


ONE_FILE: dict[str, Callable[[Path], Task]] = {
    "list": lambda folder: task_from_list(ROWS),
    "jsonl": lambda folder: load_task("jsonl", path=lines(folder / "a.jsonl", ROWS)),
    "think": lambda folder: load_task("jsonl", path=lines(folder / "a.jsonl", ROWS), format="think"),
    "gsm8k": lambda folder: load_task("gsm8k", path=lines(folder / "a.jsonl", ROWS)),
    "math": lambda folder: load_task("math", path=lines(folder / "a.jsonl", ROWS)),
    "mixture": lambda folder: load_task("mixture", arguments={"gsm8k": {"path": lines(folder / "a.jsonl", ROWS)}}),
}


@pytest.mark.parametrize("form", ONE_FILE)
@pytest.mark.parametrize("split", ["test", "validation"])
def test_of_one_file_a_tenth_is_held_out_and_the_rest_is_trained(tmp_path: Path, form: str, split: Split) -> None:
    task = trained_on_the_rest(ONE_FILE[form](tmp_path), split)
    trained, held_out = texts(task, "train"), texts(task, split)
    assert (len(trained), len(held_out)) == (36, 4)
    assert sorted(trained + held_out) == sorted(row["prompt"] for row in ROWS)


@pytest.mark.parametrize("form", ONE_FILE)
def test_with_problems_of_its_own_for_the_evaluation_every_row_is_trained(tmp_path: Path, form: str) -> None:
    own = task_from_list(EVAL).problems("train")
    task = evaluated_on(ONE_FILE[form](tmp_path), {"test": own})
    assert texts(task, "train") == sorted(row["prompt"] for row in ROWS)
    assert task.problems("test") == own


TWO_FILES: dict[str, Callable[[Path], Task]] = {
    "list": lambda folder: task_from_list(ROWS, test=EVAL),
    "splits": lambda folder: task_from_list({"train": ROWS, "test": EVAL}),
    "dev": lambda folder: task_from_list({"train": ROWS, "dev": EVAL}),
    "test_path": lambda folder: load_task(
        "jsonl", path=lines(folder / "a.jsonl", ROWS), arguments={"test_path": lines(folder / "b.jsonl", EVAL)}
    ),
    "folder": lambda folder: load_task("jsonl", path=folder_of(folder)),
    "gsm8k": lambda folder: load_task("gsm8k", path=folder_of(folder)),
    "math": lambda folder: load_task("math", path=folder_of(folder)),
    "mixture": lambda folder: Mixture({"a": MixturePart(load_task("gsm8k", path=folder_of(folder)))}),
}


def folder_of(folder: Path) -> str:
    lines(folder / "train.jsonl", ROWS)
    lines(folder / "test.jsonl", EVAL)
    return str(folder)


@pytest.mark.parametrize("form", TWO_FILES)
def test_with_a_test_split_every_row_of_train_is_trained(tmp_path: Path, form: str) -> None:
    task = trained_on_the_rest(TWO_FILES[form](tmp_path), "test")
    assert texts(task, "train") == sorted(row["prompt"] for row in ROWS)
    assert texts(task, "test") == sorted(row["prompt"] for row in EVAL)


def test_a_validation_split_is_held_out_where_it_is_the_one_evaluated(tmp_path: Path) -> None:
    task = trained_on_the_rest(load_task("gsm8k", path=folder_of(tmp_path)), "validation")
    assert (len(task.problems("train")), len(task.problems("validation"))) == (38, 2)
    assert sorted(texts(task, "train") + texts(task, "validation")) == sorted(row["prompt"] for row in ROWS)


@pytest.mark.parametrize("copies", [1, 128])
@pytest.mark.parametrize("form", ["list", "jsonl", "gsm8k"])
def test_one_prompt_is_trained_and_evaluated(tmp_path: Path, form: str, copies: int) -> None:
    rows = [ROWS[3]] * copies
    if form == "list":
        task: Task = task_from_list(rows)
    else:
        task = load_task(form, path=lines(tmp_path / "a.jsonl", rows))
    task = trained_on_the_rest(task, "test")
    assert set(texts(task, "train")) == {"3 + 1 = ?"}
    assert len(task.problems("train")) == (1 if form == "gsm8k" else copies)  # which counts a repeated prompt once
    assert texts(task, "test") == ["3 + 1 = ?"]


def test_of_two_prompts_one_is_held_out() -> None:
    task = trained_on_the_rest(task_from_list(ROWS[:2]), "validation")
    assert sorted(texts(task, "train") + texts(task, "validation")) == ["0 + 1 = ?", "1 + 1 = ?"]


@pytest.mark.parametrize("name", ["word_problems", "countdown", "code"])
def test_built_in_tasks_keep_their_splits(name: str) -> None:
    task = load_task(name)
    assert trained_on_the_rest(task, "test") is task
