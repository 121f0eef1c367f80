"""Any data file as a task: a column with the prompt, and whatever columns the rewards want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grouprl.tasks.base import Split
from grouprl.tasks.boxed import BoxedAnswers
from grouprl.tasks.files import read_rows, text_or_messages
from grouprl.tasks.from_list import ListTask, task_from_list
from grouprl.types import Problem, UserError


@dataclass(frozen=True)
class Jsonl(BoxedAnswers):
    """The task `jsonl`, of .jsonl, .json (a list), .csv and .parquet files, and of `hub:owner/name`.

    `path` holds the problems and is read at once; 10 % of the different prompts are validation, and as many test
    unless `test_path` holds those. Everything but the prompt is a column that rewards get by name. `verifier` is the
    name of a built-in reward, by default `correct_answer` where every row has an `answer`.
    Reading raises UserError for anything missing or malformed, naming file and line.
    """

    path: str | None = None
    test_path: str | None = None
    prompt_column: str = "prompt"
    gold_column: str | None = None
    verifier: str | None = None

    def __post_init__(self) -> None:
        if self.verifier is None:  # the rows say whether there are answers
            object.__setattr__(self, "verifier", self._task.verifier)

    @property
    def name(self) -> str:
        """`jsonl`."""
        return "jsonl"

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """0.5 for a boxed answer and 1.0 for the right one; none where nothing says what is right."""
        return self._task.default_rewards

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """1.0 for each worked equation, where answers are compared by value."""
        return self._task.default_step_rewards

    @classmethod
    def example(cls) -> Problem:
        """A problem from a file with the columns `prompt` and `answer`."""
        return Problem("jsonl/example", "What is 3 + 4?", {"answer": "7"})

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the file."""
        if self.path is None:
            raise UserError("task.path: expected a data file, got none: write task.path=FILE.jsonl")
        return self._task.problems(split)

    def gold(self, problem: Problem) -> str | None:
        """The column `gold_column`, else the boxed answer where a built-in reward judges by it."""
        return self._task.gold(problem)

    @cached_property
    def _task(self) -> ListTask:
        if self.path is None:
            return ListTask(self.name, {}, self.verifier or "correct_answer", {}, self.gold_column)
        return task_from_list(
            self._rows(self.path, "train"),
            name="jsonl",
            test=None if self.test_path is None else self._rows(self.test_path, "test"),
            verifier=self.verifier,
            prompt_column=self.prompt_column,
            gold_column=self.gold_column,
        )

    def _rows(self, path: str, split: str) -> list[Mapping[str, Any]]:
        rows = read_rows(path, split)
        return [{**row[1], self.prompt_column: text_or_messages(row, self.prompt_column)} for row in rows]
