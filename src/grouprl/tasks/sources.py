"""The problems of tasks that read a data set: a file, a folder with train and test, or `hub:owner/name`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from grouprl.tasks.answers import boxed_prompt
from grouprl.tasks.base import Split, or_shared, partition
from grouprl.tasks.files import Row, read_each, read_rows, read_splits
from grouprl.types import Message, Problem, UserError

PromptRow = tuple[str, Mapping[str, Any] | None]
"""The text of a prompt and the columns of its problem; None in place of the columns skips the row."""
_Read = tuple[str, Mapping[str, Any] | None, str]  # the place of a row, its columns, and its story


class FileProblems(ABC):
    """The problems of a `Task` in a data set, which is read when they are first needed.

    The hash of a prompt splits a single file into train, validation and test, 80/10/10. Where train and test are given,
    it takes 5 % of train as validation. Rows of one `story` are in one split. A run trains on what it does not evaluate
    (`tasks.held_out`). A repeated prompt counts once, and in test rather than in train. A class with a `test_share` has
    that part of a single file as its test split, which no run trains on.
    Reading raises UserError with file and line for missing or malformed data.
    """

    path: str | None
    name: ClassVar[str]
    default_path: ClassVar[str] = ""
    test_share: ClassVar[float | None] = None
    example_row: ClassVar[Mapping[str, Any]]

    @classmethod
    def example(cls) -> Problem:
        """A problem in the form of the task's files."""
        text, columns = cls().read(("example", cls.example_row))
        return Problem(f"{cls.name}/example", cls().prompt(text), columns or {})

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the file."""
        return self._loaded[1][split]

    @property
    def given(self) -> Collection[Split] | None:
        """The splits that the data has; the others were cut from train. None = a built-in file with fixed splits."""
        fixed = self.path is None and Path(self.source()).is_file()
        return None if fixed else self._loaded[0]

    def source(self) -> str:
        """A file, a folder, or `hub:owner/name`. Raises UserError without one."""
        return self.path or self.default_path

    @abstractmethod
    def read(self, row: Row) -> PromptRow:
        """A row's prompt and columns. Raises UserError for a malformed row."""

    def story(self, row: Row, text: str) -> str:
        """What a row shares with rows that are so alike that none of them is trained on while another is a test."""
        return text

    def prompt(self, text: str) -> tuple[Message, ...]:
        """The messages for the text of a prompt."""
        return boxed_prompt(text)

    @cached_property
    def _loaded(self) -> tuple[Collection[Split], Mapping[Split, Sequence[Problem]]]:
        """The splits that the data has, and the problems of all splits."""
        parts = read_splits(self.source()) or {"train": read_rows(self.source())}
        folder = Path(self.source())
        if "test" not in parts and folder.is_dir() and not (folder / "state.json").is_file():  # one saved data set
            read_rows(self.source(), "test")  # raises: there is none
        read: dict[Split, dict[str, _Read]] = {split: self._read(part) for split, part in parts.items()}
        if "test" not in parts:
            rows = read["train"]
            splits = self._partition(rows, validation=0.1, test=self.test_share or 0.1)
        else:
            held_out = read.get("validation", {}) | read["test"]
            train = {text: row for text, row in read["train"].items() if text not in held_out}
            rows = train | held_out
            splits = self._partition(train, validation=0.0 if "validation" in parts else 0.05, test=0.0)
            splits |= {text: split for split in ("validation", "test") for text in read.get(split, ())}
        problems: dict[Split, list[Problem]] = {"train": [], "validation": [], "test": []}
        for text, (where, columns, _) in rows.items():
            if columns is not None:
                part = problems[splits[text]]
                part.append(Problem(f"{self.name}/{splits[text]}/{len(part)}", self.prompt(text), columns, where))
        if not problems["train"]:
            raise UserError(
                f"task.path: expected problems to train on, got none in {self.source()} that is not skipped"
            )
        return (*parts, "test") if self.test_share else tuple(parts), or_shared(problems)

    def _read(self, rows: Iterable[Row]) -> dict[str, _Read]:
        rows_by_text: dict[str, _Read] = {}
        for row, (text, columns) in read_each(rows, lambda row: (row, self.read(row))):
            rows_by_text.setdefault(text, (row[0], columns, self.story(row, text)))
        return rows_by_text

    @staticmethod
    def _partition(rows: Mapping[str, _Read], *, validation: float, test: float) -> dict[str, Split]:
        splits = partition((story for _, _, story in rows.values()), validation=validation, test=test)
        return {text: splits[story] for text, (_, _, story) in rows.items()}
