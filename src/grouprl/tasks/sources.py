"""Questions of a data set by split: from one file, from a folder with train and test, or from the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grouprl.tasks.base import Split
from grouprl.tasks.files import Row, read_rows, read_splits
from grouprl.tasks.splits import partition

Asked = tuple[str, Mapping[str, Any]]
"""A question and the columns of its problem."""


def read_questions(path: str, read: Callable[[Row], Asked]) -> dict[Split, list[Asked]]:
    """The questions of every split, in the order of the file.

    A file is cut into train, validation and test by the hash of the question, 80/10/10; where there are train and test
    already, 5 % of train is validation. A question met twice counts once, and in test before train.

    Args:
        path: a file, a folder, or `hub:owner/name`.
        read: a row's question and columns; raises UserError for a row that has none.

    Raises:
        UserError: anything missing or malformed, naming file and line.
    """
    parts = read_splits(path, ("train", "test"))
    if parts is None:
        columns = _first_of_each(read_rows(path), read)
        splits = partition(columns, validation=0.1, test=0.1)
    else:
        test = _first_of_each(parts["test"], read)
        train = {asked: row for asked, row in _first_of_each(parts["train"], read).items() if asked not in test}
        columns = train | test
        splits = partition(train, validation=0.05, test=0.0) | dict.fromkeys(test, "test")
    found: dict[Split, list[Asked]] = {"train": [], "validation": [], "test": []}
    for question, row in columns.items():
        found[splits[question]].append((question, row))
    return found


def _first_of_each(rows: Sequence[Row], read: Callable[[Row], Asked]) -> dict[str, Mapping[str, Any]]:
    questions: dict[str, Mapping[str, Any]] = {}
    for question, columns in map(read, rows):
        questions.setdefault(question, columns)
    return questions
