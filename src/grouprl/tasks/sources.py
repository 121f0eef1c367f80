"""Reads the prompts of a data set by split: from one file, from a folder with train and test, or from the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grouprl.tasks.base import Split
from grouprl.tasks.files import Row, read_rows, read_splits
from grouprl.tasks.splits import partition

PromptRow = tuple[str, Mapping[str, Any]]
"""The text of a prompt and the columns of its problem."""


def read_prompts(path: str, read: Callable[[Row], PromptRow]) -> dict[Split, list[PromptRow]]:
    """The prompts of every split, in the order of the file.

    The hash of a prompt splits a single file into train, validation and test, 80/10/10. Where train and test are given,
    it takes 5 % of train as validation. A repeated prompt counts once, and in test rather than in train.

    Args:
        path: a file, a folder, or `hub:owner/name`.
        read: gives a row's prompt and columns; raises UserError for a malformed row.

    Raises:
        UserError: data is missing or malformed; the text names file and line.
    """
    parts = read_splits(path, ("train", "test"))
    if parts is None:
        columns = _unique_prompts(read_rows(path), read)
        splits = partition(columns, validation=0.1, test=0.1)
    else:
        test = _unique_prompts(parts["test"], read)
        train = {asked: row for asked, row in _unique_prompts(parts["train"], read).items() if asked not in test}
        columns = train | test
        splits = partition(train, validation=0.05, test=0.0) | dict.fromkeys(test, "test")
    found: dict[Split, list[PromptRow]] = {"train": [], "validation": [], "test": []}
    for question, row in columns.items():
        found[splits[question]].append((question, row))
    return found


def _unique_prompts(rows: Sequence[Row], read: Callable[[Row], PromptRow]) -> dict[str, Mapping[str, Any]]:
    questions: dict[str, Mapping[str, Any]] = {}
    for question, columns in map(read, rows):
        questions.setdefault(question, columns)
    return questions
