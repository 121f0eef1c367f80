"""Rows and splits of the data that a program holds: lists, data sets, data frames and tables of other libraries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from grouprl.tasks.base import Split
from grouprl.types import UserError

# What data sets call their splits.
_SPLITS: Mapping[str, Split] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "dev": "validation",
    "test": "test",
}


def splits_of(data: Any) -> dict[Split, list[Mapping[str, Any]]]:
    """Reads the rows of every split of some data.

    Args:
        data: rows (an iterable of mappings, such as a list, a generator or a `datasets.Dataset`), a data frame of
            pandas or polars, a table of Arrow, or a mapping from the names of splits to these (`datasets.DatasetDict`).

    Raises:
        UserError: it is nothing of these, has no split train, or a split of another name.
    """
    if not isinstance(data, Mapping):
        return {"train": rows_of_table(data)}
    unknown = [str(name) for name in data if name not in _SPLITS]
    named = [_SPLITS[name] for name in data if name in _SPLITS]
    if unknown or "train" not in named or len(set(named)) < len(named):
        raise UserError(
            f"task: expected rows such as [{{'prompt': '2 + 2 = ?'}}], or splits with the names train, validation and "
            f"test, got {', '.join(map(str, data)) or 'nothing'}: rename the splits, or give one of them"
        )
    return {_SPLITS[name]: rows_of_table(part) for name, part in data.items()}


def is_stream(data: Any) -> bool:
    """Whether it is a `datasets.IterableDataset`, which may have no end, or has one among its splits."""
    if isinstance(data, Mapping):
        return any(map(is_stream, data.values()))
    return hasattr(data, "take") and hasattr(data, "n_shards")


def first_rows(data: Any, count: int) -> Any:
    """The first rows of a stream, or of each stream among splits; anything else as it is."""
    if isinstance(data, Mapping):
        return {name: first_rows(part, count) for name, part in data.items()}
    return list(data.take(count)) if is_stream(data) else data


def rows_of_table(data: Any) -> list[Mapping[str, Any]]:
    """Reads the rows of one split: see `splits_of`.

    Raises:
        UserError: it holds no rows.
    """
    if is_stream(data):
        raise UserError(
            "task: expected rows with an end, because every epoch has an order of its own, got a stream: give its "
            "first rows, such as list(data.take(100_000))"
        )
    if hasattr(data, "to_dicts"):  # polars
        return list(data.to_dicts())
    if hasattr(data, "to_pylist"):  # Arrow
        return list(data.to_pylist())
    if hasattr(data, "to_dict") and hasattr(data, "iterrows"):  # pandas, which writes NaN where a value is missing
        return [{name: _known(value) for name, value in row.items()} for row in data.to_dict(orient="records")]
    if isinstance(data, str | Mapping) or not isinstance(data, Iterable):
        raise UserError(
            f"task: expected a task's name, a Task, a data file or rows such as [{{'prompt': '2 + 2 = ?'}}], got "
            f"{type(data).__name__}: give one of them"
        )
    return list(data)


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
