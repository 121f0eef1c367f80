"""Rows of data frames, tables and data sets become the same problems as the rows of a list."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pyarrow
import pytest

from grouprl import UserError
from grouprl.config.run import RunConfig, TaskConfig, load_config
from grouprl.tasks import load_task, task_from_list
from grouprl.tasks.base import Split, Task

ROWS = [{"prompt": f"{number} + 1 = ?", "answer": str(number + 1), "level": number % 3} for number in range(40)]


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
    assert problems(task_from_list(form(ROWS))) == problems(task_from_list(ROWS))
    found = problems(task_from_list({"train": form(ROWS[:20]), "valid": form(ROWS[20:30]), "test": form(ROWS[30:])}))
    assert [text for text, _ in found["validation"]] == [row["prompt"] for row in ROWS[20:30]]
    assert [text for text, _ in found["test"]] == [row["prompt"] for row in ROWS[30:]]
    assert [text for text, _ in found["train"]] == [row["prompt"] for row in ROWS[:20]]


def test_the_splits_of_a_data_set_are_splits() -> None:
    datasets = pytest.importorskip("datasets")
    parts = datasets.DatasetDict({"train": in_dataset(ROWS[:30]), "test": in_dataset(ROWS[30:])})
    assert len(task_from_list(parts).problems("test")) == 10


def test_a_missing_value_of_pandas_is_none_not_nan() -> None:
    rows = [{"prompt": f"Say {number}.", "hint": math.nan if number % 2 else 1.5} for number in range(20)]
    found = task_from_list(in_pandas(rows)).problems("train")
    assert {one.columns["hint"] for one in found} == {None, 1.5}


def test_a_stream_is_refused_before_it_is_read() -> None:
    with pytest.raises(UserError, match=r"list\(data.take"):
        task_from_list(in_dataset(ROWS).to_iterable_dataset())


@pytest.mark.parametrize("data", [{"prompt": "x"}, {"test": ROWS}, {"train": ROWS, "dev": ROWS, "valid": ROWS}, 7, {}])
def test_what_holds_no_rows_is_a_sentence(data: Any) -> None:
    with pytest.raises(UserError, match="task: expected"):
        task_from_list(data)


def test_a_data_file_in_place_of_a_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("prompt,answer\n" + "".join(f"{row['prompt']},{row['answer']}\n" for row in ROWS))
    settings = load_config(RunConfig, [], [f"task={path}"]).task
    assert settings == TaskConfig(name="jsonl", path=str(path))
    assert len(load_task(**settings.model_dump()).problems("train")) > 20
    assert load_config(RunConfig, [], ["task=hub:openai/gsm8k"]).task.path == "hub:openai/gsm8k"
