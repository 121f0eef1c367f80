"""A task from a list of your own: rows with a prompt and whatever columns your reward functions want."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from grouprl.tasks.answers import final_answer, is_worked
from grouprl.tasks.base import Split
from grouprl.tasks.boxed import boxed
from grouprl.tasks.splits import partition
from grouprl.types import Message, Problem, UserError

HELD_OUT = 0.1

Rows = Iterable[Mapping[str, Any]]


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
        """The verifier, and for one of the built-in ones half as much for the box; none without a verifier."""
        if self.verifier is None:
            return {}
        return ({} if self.verifier in self.own_rewards else {"boxed_format": 0.5}) | {self.verifier: 1.0}

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
        by_answer = self.verifier in ("correct_answer", "math_verify")
        return boxed(final_answer(answer)) if by_answer and answer is not None else None

    def traits(self, text: str) -> Mapping[str, bool]:
        """`worked`: an equation stands before the answer."""
        return {"worked": is_worked(text)}


def task_from_list(
    rows: Rows,
    *,
    name: str = "list",
    verifier: str | Callable[..., Any] | None = None,
    validation: Rows | None = None,
    test: Rows | None = None,
    prompt_column: str = "prompt",
    gold_column: str | None = None,
) -> ListTask:
    """A task from rows with a prompt (text, or chat messages) and any other columns, which rewards get by name.

    A held-out split that is not given is cut from `rows`: 10 % of the different prompts, chosen by their hash.

    Args:
        rows: the problems.
        name: of the task, in records.
        verifier: the reward that gives 1.0 or more for a correct completion: a function in TRL's form, or the name of a
            built-in one. None = `correct_answer` where every row has an `answer`, else nothing is counted as solved.
        validation, test: held-out problems.
        prompt_column: where the prompt stands.
        gold_column: where a completion that solves the problem stands, if anywhere.

    Raises:
        UserError: no rows, a row without a usable prompt, a prompt that is in two splits, or too few prompts.
    """
    splits: dict[Split, Rows | None] = {"train": rows, "validation": validation, "test": test}
    given = {split: list(part) for split, part in splits.items() if part is not None}
    problems = {split: _problems(f"{name}/{split}", part, prompt_column) for split, part in given.items()}
    _refuse_overlap(problems)
    missing = {split: HELD_OUT for split in get_args(Split) if split not in problems}
    cut = partition(
        (problem.prompt_text for problem in problems["train"]),
        validation=missing.get("validation", 0.0),
        test=missing.get("test", 0.0),
    )
    for split in ("train", *missing):
        everything = _problems(f"{name}/{split}", given["train"], prompt_column)
        problems[split] = [problem for problem in everything if cut[problem.prompt_text] == split]
    if verifier is None and all(problem.columns.get("answer") is not None for problem in problems["train"]):
        verifier = "correct_answer"
    if callable(verifier):
        called = getattr(verifier, "__name__", type(verifier).__name__)
        return ListTask(name, problems, called, {called: verifier}, gold_column)
    return ListTask(name, problems, verifier, {}, gold_column)


def _problems(prefix: str, rows: Sequence[Mapping[str, Any]], prompt_column: str) -> list[Problem]:
    if not rows:
        raise UserError(
            f"{prefix}: expected a list of rows such as {{{prompt_column!r}: '2 + 2 = ?'}}, got none: add problems"
        )
    return [_problem(f"{prefix}/{number}", row, prompt_column) for number, row in enumerate(rows)]


def _problem(identity: str, row: Mapping[str, Any], prompt_column: str) -> Problem:
    prompt = row.get(prompt_column) if isinstance(row, Mapping) else None
    if isinstance(prompt, Sequence) and prompt and (isinstance(prompt, str) or all(map(_is_message, prompt))):
        messages: str | tuple[Message, ...] = prompt if isinstance(prompt, str) else tuple(map(dict, prompt))
        return Problem(identity, messages, {key: value for key, value in row.items() if key != prompt_column})
    raise UserError(
        f"{identity}: expected a column {prompt_column!r} with text or with messages such as "
        f"{{'role': 'user', 'content': '2 + 2 = ?'}}, got {row!r:.80}: add it"
    )


def _is_message(message: object) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _refuse_overlap(problems: Mapping[Split, Sequence[Problem]]) -> None:
    owners: dict[str, str] = {}
    for split, part in problems.items():
        for problem in part:
            if owners.setdefault(problem.prompt_text, split) != split:
                raise UserError(
                    f"expected splits without common prompts, got {problem.prompt_text[:60]!r} in both "
                    f"{owners[problem.prompt_text]} and {split}: remove it from one"
                )
