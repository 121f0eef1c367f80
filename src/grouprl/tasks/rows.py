"""Tasks of rows: a list, a data frame or a data file, with a prompt and the columns that reward functions need."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, get_args

from grouprl.tasks.answers import EQUATION_STEPS, boxed, final_answer, is_in_file, is_worked
from grouprl.tasks.base import Split, or_shared, partition
from grouprl.tasks.files import HUB, Row, check_answer, read_each, read_rows, read_splits, short_repr, text_or_messages
from grouprl.types import Message, Problem, UserError

# What data sets call their splits.
_SPLITS: Mapping[str, Split] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "dev": "validation",
    "test": "test",
}

HELD_OUT = 0.1
NO_PROMPT: tuple[Message, ...] = ({"role": "user", "content": ""},)
"""The prompt of a row without one, which an environment completes, as in TRL."""
BY_ANSWER = frozenset({"correct_answer", "math_verify"})
"""Built-in verifiers that compare the final answer with the column `answer`."""
Rows = Any
"""What `splits_of` reads: rows, a data frame, or a mapping of splits."""


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
        return [
            {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
            for row in data.to_dict(orient="records")
        ]
    if isinstance(data, str | Mapping) or not isinstance(data, Iterable):
        raise UserError(
            f"task: expected a task's name, a Task, a data file or rows such as [{{'prompt': '2 + 2 = ?'}}], got "
            f"{type(data).__name__}: give one of them"
        )
    return list(data)


@dataclass(frozen=True)
class RowFormat:
    """The names of a row's columns, and the settings that name them."""

    prompt_column: str = "prompt"
    answer_column: str = "answer"
    gold_column: str | None = None
    messages: bool = False  # turns a text prompt into a user message
    prompts: bool = True  # whether each row has a prompt; else an environment may give it
    setting: str = ""  # prefix of these names in a configuration, for errors; "" = rows of a program

    def option(self, name: str) -> str:
        """How one of these names is set, for an error."""
        return f"{self.setting}{name}=NAME" if self.setting else f"task=task_from_list(rows, {name}=NAME)"


class RowRewards:
    """The rewards and gold completions of a `Task` of rows, which follow from its verifier and its gold column."""

    verifier: str | None
    gold_column: str | None

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """1.0 for the verifier, and 0.5 for a box where the verifier compares answers.

        Empty without a verifier and with a verifier in a file, which only the run can load: the run names its rewards.
        """
        if self.verifier is None or is_in_file(self.verifier):
            return {}
        return ({"boxed_format": 0.5} if self.verifier in BY_ANSWER else {}) | {self.verifier: 1.0}

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """1.0 for each worked equation, where the verifier compares answers by value."""
        return EQUATION_STEPS if self.verifier == "correct_answer" else {}

    def gold(self, problem: Problem) -> str | None:
        """The text in `gold_column`, else the boxed answer where a built-in verifier compares it."""
        if self.gold_column is not None:
            written = problem.columns.get(self.gold_column)
            return None if written is None else str(written)
        answer = problem.columns.get("answer")
        return boxed(final_answer(answer)) if self.verifier in BY_ANSWER and answer is not None else None

    def traits(self, text: str) -> Mapping[str, bool]:
        """`worked`: an equation stands before the answer."""
        return {"worked": is_worked(text)}


@dataclass(frozen=True)
class ListTask(RowRewards):
    """Problems that are already in memory."""

    name: str
    splits: Mapping[Split, Sequence[Problem]]
    verifier: str | None = None  # reward that verifies completions; None = the task has no verifier
    own_rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    gold_column: str | None = None  # holds a completion that solves the problem
    given: Collection[Split] = ()  # the splits that were given; the others were cut from train
    verifier_named: bool = False  # whether somebody named the verifier

    @property
    def verifier_given(self) -> bool:
        """Whether somebody named the verifier, or gave its function."""
        return self.verifier_named or self.verifier in self.own_rewards

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the rows."""
        return self.splits[split]


def task_from_list(
    rows: Rows,
    *,
    name: str = "list",
    verifier: str | Callable[..., Any] | None = None,
    validation: Rows | None = None,
    test: Rows | None = None,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    gold_column: str | None = None,
    messages: bool = False,
    prompts: bool = True,
) -> ListTask:
    """A task from rows with a prompt (text or chat messages) and any other columns, which rewards get by name.

    A held-out split that is not given takes 10 % of the different prompts of `rows`, chosen by their hash; a run trains
    on those that it does not evaluate (`tasks.held_out`).

    Args:
        rows: the problems: a list, a data set, a data frame of pandas or polars, or a mapping from the names of splits
            to these (`datasets.DatasetDict`).
        name: the task's name in records.
        verifier: the reward that gives 1.0 or more for a correct completion: a function in TRL's form, the name of a
            built-in reward or of one of the run's rewards, or `FILE.py:FUNCTION`. None = `correct_answer` where every
            row has an answer, else the task has no verifier.
        validation, test: held-out problems.
        prompt_column: the column with the prompt.
        answer_column: the column that becomes `answer`, and replaces a column of that name.
        gold_column: the column with a completion that solves the problem, if there is one.
        messages: whether a text prompt becomes a user message, for the model's chat template.
        prompts: whether each row needs a prompt; else one without it has an empty user message, to which an
            environment adds the prompt. A row with a column `environment` needs none.

    Raises:
        UserError: there are no rows, a row has no usable prompt, no completion could equal an
            answer, or two splits share a prompt.
    """
    row_format = RowFormat(prompt_column, answer_column, gold_column, messages, prompts)
    held_out: dict[Split, Rows] = {"validation": validation, "test": test}
    tables = splits_of(rows) | {split: rows_of_table(part) for split, part in held_out.items() if part is not None}
    parts: dict[Split, list[Row]] = {
        split: [(f"{name}/{split}/{number}", row) for number, row in enumerate(part)] for split, part in tables.items()
    }
    return task_from_rows(parts, name=name, verifier=verifier, row_format=row_format)


def problems_from_rows(rows: Any, name: str, *, prompts: bool = True) -> Sequence[Problem]:
    """The problems of rows in any form of `rows_of_table`, all of them and in their order; see `task_from_list`.

    Raises:
        UserError: there are no rows, or a row has no usable prompt.
    """
    placed = [(f"{name}/{number}", row) for number, row in enumerate(rows_of_table(rows))]
    return _problems(name, placed, RowFormat(prompts=prompts))


def task_from_rows(
    parts: Mapping[Split, Sequence[Row]],
    *,
    name: str,
    verifier: str | Callable[..., Any] | None,
    row_format: RowFormat,
) -> ListTask:
    """A task from rows with places, for errors; `parts` has at least the rows of train. See `task_from_list`."""
    problems: dict[Split, Sequence[Problem]]
    problems = {split: _problems(f"{name}/{split}", part, row_format) for split, part in parts.items()}
    everything, named = chain.from_iterable(problems.values()), verifier is not None
    if verifier is None and all(problem.columns.get("answer") is not None for problem in everything):
        verifier = "correct_answer"
    if isinstance(verifier, str) and verifier in BY_ANSWER:  # it does not apply to a problem without an answer
        answer_column = row_format.answer_column
        with_answer = (row for row in chain.from_iterable(parts.values()) if row[1].get(answer_column) is not None)
        read_each(with_answer, lambda row: check_answer(row, answer_column))
    owners: dict[str, str] = {}
    for split, split_problems in problems.items():
        for problem in split_problems:
            if problem.prompt_text and owners.setdefault(problem.prompt_text, split) != split:
                raise UserError(
                    f"expected splits without common prompts, got {problem.prompt_text[:60]!r} in both "
                    f"{owners[problem.prompt_text]} and {split}: remove it from one"
                )
    missing = {split: HELD_OUT for split in get_args(Split) if split not in problems}
    cut = partition(
        (problem.prompt_text for problem in problems["train"]),
        validation=missing.get("validation", 0.0),
        test=missing.get("test", 0.0),
    )
    for split in (*missing, "train"):
        uncut = _problems(f"{name}/{split}", parts["train"], row_format)
        problems[split] = [problem for problem in uncut if cut[problem.prompt_text] == split]
    own_rewards = {}
    if callable(verifier):
        function, verifier = verifier, getattr(verifier, "__name__", type(verifier).__name__)
        own_rewards = {verifier: function}
    return ListTask(name, or_shared(problems), verifier, own_rewards, row_format.gold_column, tuple(parts), named)


def _problems(prefix: str, rows: Sequence[Row], row_format: RowFormat) -> list[Problem]:
    if not rows:
        raise UserError(
            f"{prefix}: expected a list of rows such as {{{row_format.prompt_column!r}: '2 + 2 = ?'}}, got none: add "
            "problems"
        )
    return read_each(enumerate(rows), lambda item: _problem(f"{prefix}/{item[0]}", item[1], row_format))


def _problem(identity: str, row: Row, row_format: RowFormat) -> Problem:
    where, columns = row
    if not isinstance(columns, Mapping):
        raise UserError(
            f"{where}: expected a row with columns, got {short_repr(columns)}: write {{'prompt': '2 + 2 = ?'}}"
        )
    remedy = f"name the column of the prompt with {row_format.option('prompt_column')}"
    prompt: str | tuple[Message, ...] = NO_PROMPT
    if row_format.prompt_column in columns or (row_format.prompts and "environment" not in columns):
        prompt = text_or_messages(row, row_format.prompt_column, remedy=remedy)
    if row_format.messages and isinstance(prompt, str):
        prompt = ({"role": "user", "content": prompt},)
    others = {key: value for key, value in columns.items() if key != row_format.prompt_column}
    if row_format.answer_column != "answer":
        if row_format.answer_column not in others:
            raise UserError(
                f"{where}: expected a column {row_format.answer_column!r} with the answer, got "
                f"{', '.join(map(str, others)) or 'none'}: name it with {row_format.option('answer_column')}"
            )
        others["answer"] = others.pop(row_format.answer_column)
    return Problem(identity, prompt, others, where)


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
