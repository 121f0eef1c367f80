"""A task from a list of your own: rows with a `prompt` and whatever columns your reward functions want."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from grouprl.tasks.answers import boxed_equals, final_answer, is_worked, last_boxed, same_value
from grouprl.tasks.base import Split
from grouprl.tasks.splits import partition
from grouprl.types import Message, Problem, UserError

HELD_OUT = 0.1

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class ListTask:
    """Problems that are already in memory, with the function that judges a completion's text."""

    name: str
    splits: Mapping[Split, Sequence[Problem]]
    judge: Callable[[Problem, str], bool]
    default_rewards: Mapping[str, float]  # empty when the problems have no `answer` to compare with

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """1.0 for each worked equation, where the problems have an `answer`."""
        return {"equation_steps": 1.0} if self.default_rewards else {}

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order they were given."""
        return self.splits[split]

    def correct(self, problem: Problem, text: str) -> bool:
        """Whether a completion's text solves the problem."""
        return self.judge(problem, text)

    def traits(self, text: str) -> Mapping[str, bool]:
        """`worked`: an equation stands before the answer."""
        return {"worked": is_worked(text)}


def task_from_list(
    rows: Rows,
    *,
    name: str = "list",
    correct: Callable[[Problem, str], bool] | None = None,
    validation: Rows | None = None,
    test: Rows | None = None,
) -> ListTask:
    """A task from rows with a `prompt` (text, or chat messages) and any other columns, which rewards get by name.

    A held-out split that is not given is cut from `rows`: 10 % of the different prompts, chosen by their hash.
    Without `correct`, a completion is correct when its last box, or the whole text if it has none, equals the column
    `answer`; a problem without an answer is then never counted as solved.

    Raises UserError for no rows, a row without a usable prompt, a prompt that is in two splits, or too few prompts.
    """
    splits: dict[Split, Rows | None] = {"train": rows, "validation": validation, "test": test}
    given = {split: list(part) for split, part in splits.items() if part is not None}
    problems = {split: _problems(f"{name}/{split}", part) for split, part in given.items()}
    _refuse_overlap(problems)
    missing = {split: HELD_OUT for split in get_args(Split) if split not in problems}
    cut = partition(
        (problem.prompt_text for problem in problems["train"]),
        validation=missing.get("validation", 0.0),
        test=missing.get("test", 0.0),
    )
    for split in ("train", *missing):
        problems[split] = [p for p in _problems(f"{name}/{split}", given["train"]) if cut[p.prompt_text] == split]
    answered = all(problem.columns.get("answer") is not None for problem in problems["train"])
    return ListTask(
        name, problems, correct or _answered, {"boxed_format": 0.5, "correct_answer": 1.0} if answered else {}
    )


def _problems(prefix: str, rows: Sequence[Mapping[str, Any]]) -> list[Problem]:
    if not rows:
        raise UserError(f"{prefix}: expected a list of rows such as {{'prompt': '2 + 2 = ?'}}, got none: add problems")
    return [_problem(f"{prefix}/{number}", row) for number, row in enumerate(rows)]


def _problem(identity: str, row: Mapping[str, Any]) -> Problem:
    prompt = row.get("prompt") if isinstance(row, Mapping) else None
    if isinstance(prompt, Sequence) and prompt and (isinstance(prompt, str) or all(map(_is_message, prompt))):
        messages: str | tuple[Message, ...] = prompt if isinstance(prompt, str) else tuple(map(dict, prompt))
        return Problem(identity, messages, {key: value for key, value in row.items() if key != "prompt"})
    raise UserError(
        f"{identity}: expected a column 'prompt' with text or with messages such as "
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


def _answered(problem: Problem, text: str) -> bool:
    answer = problem.columns.get("answer")
    if answer is None:
        return False
    return boxed_equals(text, answer) if last_boxed(text) is not None else same_value(text, final_answer(answer))
