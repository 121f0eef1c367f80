"""A data file as a task: one column holds the prompt, the rewards get the others by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from grouprl.tasks.base import Split
from grouprl.tasks.boxed_answers import BoxedAnswers
from grouprl.tasks.files import Row, read_rows
from grouprl.tasks.from_list import ListTask, RowFormat, task_from_rows
from grouprl.types import Problem, UserError


@dataclass(frozen=True)
class Jsonl(BoxedAnswers):
    """The task `jsonl`, of .jsonl, .json (a list), .csv and .parquet files, and of `hub:owner/name`.

    `path` holds the problems and is read at once; 10 % of the different prompts are validation, and as many test
    unless `test_path` holds those. Everything but the prompt is a column that rewards get by name; `answer_column` is
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

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, kind = getattr(self, setting.name), bool if setting.name == "messages" else str
            if value != setting.default and not isinstance(value, kind):
                raise UserError(
                    f"task.arguments.{setting.name}: expected {'true or false' if kind is bool else 'text'}, got "
                    f"{value!r:.80}: write it so"
                )
        if self.verifier is None:  # it depends on the rows: whether all have answers
            object.__setattr__(self, "verifier", self._task.verifier)

    @property
    def name(self) -> str:
        """`jsonl`."""
        return "jsonl"

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """0.5 for a boxed answer and 1.0 for the right one; empty without a verifier."""
        return self._task.default_rewards

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """1.0 for each worked equation, where the verifier compares answers by value."""
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
        """The text in `gold_column`, else the boxed answer where a built-in verifier compares it."""
        return self._task.gold(problem)

    @cached_property
    def _task(self) -> ListTask:
        if self.path is None:
            return ListTask(self.name, {}, self.verifier or "correct_answer", {}, self.gold_column)
        parts: dict[Split, Sequence[Row]] = {"train": read_rows(self.path)}
        if self.test_path is not None:
            parts["test"] = read_rows(self.test_path, "test")
        row_format = RowFormat(
            self.prompt_column, self.answer_column, self.gold_column, self.messages, setting="task.arguments."
        )
        return task_from_rows(parts, name=self.name, verifier=self.verifier, row_format=row_format)
