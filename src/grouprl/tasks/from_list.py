"""A task from a list of your own: rows with a prompt and whatever columns your reward functions want."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from grouprl.tasks.answers import final_answer, is_worked
from grouprl.tasks.base import Split
from grouprl.tasks.boxed import boxed
from grouprl.tasks.columns import Row, check_answer, shown, text_or_messages
from grouprl.tasks.splits import partition
from grouprl.types import Problem, UserError

HELD_OUT = 0.1
BY_ANSWER = frozenset({"correct_answer", "math_verify"})
"""Built-in verifiers that compare the final answer with the column `answer`."""

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Reading:
    """Which columns of a row are what, and how a user says so."""

    prompt_column: str = "prompt"
    answer_column: str = "answer"
    gold_column: str | None = None
    messages: bool = False  # text prompts become a user's message
    setting: str = ""  # what stands before these names where they are set


@dataclass(frozen=True)
class ListTask:
    """Problems that are already in memory."""

    name: str
    splits: Mapping[Split, Sequence[Problem]]
    verifier: str | None = None  # the reward that judges; None = nothing says what is correct
    own_rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    gold_column: str | None = None  # where a completion that solves the problem stands

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """The verifier, and for one that compares answers half as much for the box.

        None without a verifier and with one in a file, which only the run knows: the rewards have to be named.
        """
        if self.verifier is None or is_in_file(self.verifier):
            return {}
        return ({"boxed_format": 0.5} if self.verifier in BY_ANSWER else {}) | {self.verifier: 1.0}

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """1.0 for each worked equation, where answers are compared by value."""
        return {"equation_steps": 1.0} if self.verifier == "correct_answer" else {}

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order they were given."""
        return self.splits[split]

    def gold(self, problem: Problem) -> str | None:
        """The column `gold_column`, else the boxed answer where a built-in reward judges by it."""
        if self.gold_column is not None:
            written = problem.columns.get(self.gold_column)
            return None if written is None else str(written)
        answer = problem.columns.get("answer")
        return boxed(final_answer(answer)) if self.verifier in BY_ANSWER and answer is not None else None

    def traits(self, text: str) -> Mapping[str, bool]:
        """`worked`: an equation stands before the answer."""
        return {"worked": is_worked(text)}


def is_in_file(verifier: str) -> bool:
    """Whether a verifier is a function in a Python file, `FILE.py:FUNCTION`, rather than a name."""
    return verifier.rpartition(":")[0].endswith(".py")


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
) -> ListTask:
    """A task from rows with a prompt (text, or chat messages) and any other columns, which rewards get by name.

    A held-out split that is not given is cut from `rows`: 10 % of the different prompts, chosen by their hash.

    Args:
        rows: the problems.
        name: of the task, in records.
        verifier: the reward that gives 1.0 or more for a correct completion: a function in TRL's form, the name of a
            built-in one or of one of the run's rewards, or `FILE.py:FUNCTION`. None = `correct_answer` where every row
            has an answer, else nothing is counted as solved.
        validation, test: held-out problems.
        prompt_column: where the prompt stands.
        answer_column: what becomes the column `answer`, in the place of another one of that name.
        gold_column: where a completion that solves the problem stands, if anywhere.
        messages: whether a prompt that is text becomes a message of the user, for the model's chat template.

    Raises:
        UserError: no rows, a row without a usable prompt or with an answer that nothing can equal, a prompt that is in
            two splits, or too few prompts.
    """
    reading = Reading(prompt_column, answer_column, gold_column, messages)
    given: dict[Split, Rows | None] = {"train": rows, "validation": validation, "test": test}
    parts: dict[Split, list[Row]] = {
        split: [(f"{name}/{split}/{number}", row) for number, row in enumerate(part)]
        for split, part in given.items()
        if part is not None
    }
    return task_from_rows(parts, name=name, verifier=verifier, reading=reading)


def task_from_rows(
    parts: Mapping[Split, Sequence[Row]],
    *,
    name: str,
    verifier: str | Callable[..., Any] | None,
    reading: Reading,
) -> ListTask:
    """As `task_from_list`, from rows that know where they stand; `parts` holds at least those of train."""
    problems = {split: _problems(f"{name}/{split}", part, reading) for split, part in parts.items()}
    everything = [problem for part in problems.values() for problem in part]
    if verifier is None and all(problem.columns.get("answer") is not None for problem in everything):
        verifier = "correct_answer"
    if isinstance(verifier, str) and verifier in BY_ANSWER:
        _check_answers([row for part in parts.values() for row in part], reading.answer_column)
    _refuse_overlap(problems)
    missing = {split: HELD_OUT for split in get_args(Split) if split not in problems}
    cut = partition(
        (problem.prompt_text for problem in problems["train"]),
        validation=missing.get("validation", 0.0),
        test=missing.get("test", 0.0),
    )
    for split in (*missing, "train"):
        uncut = _problems(f"{name}/{split}", parts["train"], reading)
        problems[split] = [problem for problem in uncut if cut[problem.prompt_text] == split]
    if callable(verifier):
        called = getattr(verifier, "__name__", type(verifier).__name__)
        return ListTask(name, problems, called, {called: verifier}, reading.gold_column)
    return ListTask(name, problems, verifier, {}, reading.gold_column)


def _problems(prefix: str, rows: Sequence[Row], reading: Reading) -> list[Problem]:
    if not rows:
        raise UserError(
            f"{prefix}: expected a list of rows such as {{{reading.prompt_column!r}: '2 + 2 = ?'}}, got none: add "
            "problems"
        )
    return [_problem(f"{prefix}/{number}", row, reading) for number, row in enumerate(rows)]


def _problem(identity: str, row: Row, reading: Reading) -> Problem:
    where, columns = row
    if not isinstance(columns, Mapping):
        raise UserError(f"{where}: expected a row with columns, got {shown(columns)}: write {{'prompt': '2 + 2 = ?'}}")
    remedy = f"name the column of the prompt with {reading.setting}prompt_column=NAME"
    prompt = text_or_messages(row, reading.prompt_column, remedy=remedy)
    if reading.messages and isinstance(prompt, str):
        prompt = ({"role": "user", "content": prompt},)
    others = {key: value for key, value in columns.items() if key != reading.prompt_column}
    if reading.answer_column != "answer":
        if reading.answer_column not in others:
            raise UserError(
                f"{where}: expected a column {reading.answer_column!r} with the answer, got "
                f"{', '.join(map(str, others)) or 'none'}: name it with {reading.setting}answer_column=NAME"
            )
        others["answer"] = others.pop(reading.answer_column)
    return Problem(identity, prompt, others)


def _check_answers(rows: Sequence[Row], name: str) -> None:
    for row in rows:
        if row[1].get(name) is not None:  # a problem without an answer is one that the reward does not apply to
            check_answer(row, name)


def _refuse_overlap(problems: Mapping[Split, Sequence[Problem]]) -> None:
    owners: dict[str, str] = {}
    for split, part in problems.items():
        for problem in part:
            if owners.setdefault(problem.prompt_text, split) != split:
                raise UserError(
                    f"expected splits without common prompts, got {problem.prompt_text[:60]!r} in both "
                    f"{owners[problem.prompt_text]} and {split}: remove it from one"
                )
