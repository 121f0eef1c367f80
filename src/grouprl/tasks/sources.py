"""The problems of tasks that read a data set: a file, a folder with train and test, or `hub:owner/name`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from grouprl.tasks.base import Split
from grouprl.tasks.boxed_answers import boxed_prompt
from grouprl.tasks.files import Row, read_rows, read_splits
from grouprl.tasks.splits import partition
from grouprl.types import Message, Problem, UserError

PromptRow = tuple[str, Mapping[str, Any] | None]
"""The text of a prompt and the columns of its problem; None in place of the columns skips the row."""


class FileProblems(ABC):
    """The problems of a `Task` in a data set, which is read when they are first needed.

    The hash of a prompt splits a single file into train, validation and test, 80/10/10. Where train and test are given,
    it takes 5 % of train as validation. A repeated prompt counts once, and in test rather than in train. Reading raises
    UserError with file and line for missing or malformed data.
    """

    path: str | None
    name: ClassVar[str]
    default_path: ClassVar[str] = ""
    example_row: ClassVar[Mapping[str, Any]]

    @classmethod
    def example(cls) -> Problem:
        """A problem in the form of the task's files."""
        text, columns = cls().read(("example", cls.example_row))
        return Problem(f"{cls.name}/example", cls().prompt(text), columns or {})

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the file."""
        return self._splits[split]

    def source(self) -> str:
        """A file, a folder, or `hub:owner/name`. Raises UserError without one."""
        return self.path or self.default_path

    @abstractmethod
    def read(self, row: Row) -> PromptRow:
        """A row's prompt and columns. Raises UserError for a malformed row."""

    def prompt(self, text: str) -> tuple[Message, ...]:
        """The messages for the text of a prompt."""
        return boxed_prompt(text)

    @cached_property
    def _splits(self) -> Mapping[Split, Sequence[Problem]]:
        parts = read_splits(self.source(), ("train", "test"))
        if parts is None:
            rows = self._read(read_rows(self.source()))
            splits = partition(rows, validation=0.1, test=0.1)
        else:
            test = self._read(parts["test"])
            train = {text: columns for text, columns in self._read(parts["train"]).items() if text not in test}
            rows = train | test
            splits = partition(train, validation=0.05, test=0.0) | dict.fromkeys(test, "test")
        found: dict[Split, list[Problem]] = {"train": [], "validation": [], "test": []}
        for text, columns in rows.items():
            if columns is not None:
                part = found[splits[text]]
                part.append(Problem(f"{self.name}/{splits[text]}/{len(part)}", self.prompt(text), columns))
        if not found["train"]:
            raise UserError(
                f"task.path: expected problems to train on, got none in {self.source()} that is not skipped"
            )
        return found

    def _read(self, rows: Iterable[Row]) -> dict[str, Mapping[str, Any] | None]:
        found: dict[str, Mapping[str, Any] | None] = {}
        for text, columns in map(self.read, rows):
            found.setdefault(text, columns)
        return found
