"""A data file as a task: one column holds the prompt, the rewards get the others by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from grouprl.tasks.base import Split
from grouprl.tasks.files import HUB, Row, read_rows, read_splits
from grouprl.tasks.from_list import ListTask, RowFormat, RowRewards, task_from_rows
from grouprl.types import Problem, UserError


@dataclass(frozen=True)
class Jsonl(RowRewards):
    """The task `jsonl`, of .jsonl, .json (a list), .csv and .parquet files, and of `hub:owner/name`.

    `path` holds the problems, or is a folder with train and perhaps test, and is read at once; 10 % of the different
    prompts are validation, and as many test unless `test_path` holds those
    (see `tasks.held_out`). Everything but the prompt is a column that rewards get by name; `answer_column` is
    renamed to `answer`. `verifier` is the name of a built-in reward or of one of the run's, or `FILE.py:FUNCTION`; by
    default `correct_answer` where every row has an answer. `messages` makes a prompt that is text a user's message.
    Reading raises UserError for anything missing or malformed, naming file and line.
    """

    path: str | None = None
    test_path: str | None = None
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    gold_column: str | None = None
    verifier: str | None = None
    messages: bool = False
    name = "jsonl"
    own_rewards: ClassVar[Mapping[str, Callable[..., Any]]] = {}

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, kind = getattr(self, setting.name), bool if setting.name == "messages" else str
            if value != setting.default and not isinstance(value, kind):
                raise UserError(
                    f"task.arguments.{setting.name}: expected {'true or false' if kind is bool else 'text'}, got "
                    f"{value!r:.80}: write it so"
                )
        if self.verifier is None:  # it depends on the rows: whether all have answers
            verifier = "correct_answer" if self.path is None else self._task.verifier
            object.__setattr__(self, "verifier", verifier)

    @property
    def given(self) -> Collection[Split]:
        """The splits that the data has; see `ListTask`."""
        return self._task.given

    @classmethod
    def example(cls) -> Problem:
        """A problem from a file with the columns `prompt` and `answer`."""
        return Problem("jsonl/example", "What is 3 + 4?", {"answer": "7"})

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the file."""
        return self._task.problems(split)

    @cached_property
    def _task(self) -> ListTask:
        if self.path is None:
            raise UserError("task.path: expected a data file, got none: write task.path=FILE.jsonl")
        # Of a data set on the hub only train: its test rows may lack answers.
        parts: dict[Split, list[Row]] = {} if self.path.startswith(HUB) else read_splits(self.path) or {}
        parts = parts or {"train": read_rows(self.path)}
        if self.test_path is not None:
            parts["test"] = read_rows(self.test_path, "test")
        row_format = RowFormat(
            self.prompt_column, self.answer_column, self.gold_column, self.messages, setting="task.arguments."
        )
        return task_from_rows(parts, name=self.name, verifier=self.verifier, row_format=row_format)
