r"""Countdown: reach a target with given numbers; procedural problems in the form of TinyZero (Jiayi Pan et al. 2025).

Problem i of a split is a pure function of (seed, split, i). Its split follows from a hash of its numbers and target,
so that no two splits share a problem, whatever the seeds and the order of the numbers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from grouprl.tasks.answers import completion_text, final_text
from grouprl.tasks.arithmetic import UnreadableError, evaluate, numbers
from grouprl.tasks.base import Split
from grouprl.tasks.boxed_answers import BoxedAnswers, boxed, boxed_prompt
from grouprl.tasks.lazy_problems import LazyProblems
from grouprl.tasks.splits import split_of
from grouprl.types import Problem, UserError

LARGEST_NUMBER = 99
TARGETS = range(10, 100)
ATTEMPTS = 20_000  # draws for one problem; some settings have only a few thousand different problems


@dataclass(frozen=True)
class Countdown(BoxedAnswers):
    """The task `countdown`.

    `difficulty` is the number of given numbers, 2..6. A solution uses every number exactly once; with `use_all` off, at
    most once. Every problem has a solution that uses all numbers. Raises UserError for an option out of range.
    """

    difficulty: int = 3
    use_all: bool = True
    train_problems: int = 20_000
    eval_problems: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, ok, allowed in (
            ("difficulty", self.difficulty, self.difficulty in range(2, 7), "2 to 6"),
            ("arguments.use_all", self.use_all, isinstance(self.use_all, bool), "true or false"),
            ("train_problems", self.train_problems, self.train_problems >= 1, "at least 1"),
            ("eval_problems", self.eval_problems, self.eval_problems >= 1, "at least 1"),
        ):
            if not ok:
                raise UserError(f"task.{name}: expected {allowed}, got {value!r}: change it")

    @property
    def name(self) -> str:
        """`countdown`."""
        return "countdown"

    @property
    def verifier(self) -> str | None:
        """`countdown`, the task's own reward."""
        return "countdown"

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """`countdown` with the rule of `use_all`."""
        return {"countdown": countdown if self.use_all else countdown_any}

    @classmethod
    def example(cls) -> Problem:
        """The first problem."""
        return cls().problems("train")[0]

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split. Train problems are made on access; held-out problems are all different."""
        if split == "train":
            return LazyProblems(self.train_problems, partial(_train_problem, self))
        return _held_out(self, split)

    def gold(self, problem: Problem) -> str | None:
        """The solution with its result, and in a box."""
        solution = problem.columns["solution"]
        return f"{solution} = {problem.columns['target']}. {boxed(solution)}"


def countdown(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]],
    *,
    numbers: Sequence[Sequence[int]],
    target: Sequence[int],
    **columns: Any,
) -> list[float | None]:
    r"""1.0 when the final answer is an expression that equals the target and uses every number exactly once, else 0.0.

    `tasks.answers.final_text` finds the answer, which may also read `expression = target`. An expression has whole
    numbers, `+ - * /` (also × ÷ \times \cdot \div \frac) and parentheses, and is computed exactly. Other text is no
    solution: powers, a leading minus sign, juxtaposed numbers, names, over 1000 characters, over 20 nested brackets.

    Range: 0 or 1, without partial credit. Failure modes: it ignores the reasoning, so trying combinations pays as much
    as thinking; it ignores a right solution outside of the final answer.
    """
    return [
        float(_solves(completion, given, goal, use_all=True))
        for completion, given, goal in zip(completions, numbers, target, strict=True)
    ]


def countdown_any(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]],
    *,
    numbers: Sequence[Sequence[int]],
    target: Sequence[int],
    **columns: Any,
) -> list[float | None]:
    """1.0 when the final answer equals the target and uses every number at most once, else 0.0; see `countdown`."""
    return [
        float(_solves(completion, given, goal, use_all=False))
        for completion, given, goal in zip(completions, numbers, target, strict=True)
    ]


def _solves(completion: Any, given: Sequence[int], target: int, *, use_all: bool) -> bool:
    answer = final_text(completion_text(completion))
    if answer is None:
        return False
    expression, equals, result = answer.partition("=")
    try:
        used = Counter(numbers(expression))  # checked before the computation, which it bounds
        fits = used == Counter(given) if use_all else used <= Counter(given)
        return fits and evaluate(expression) == target and (not equals or evaluate(result) == target)
    except UnreadableError:
        return False


@lru_cache(maxsize=1 << 16)
def _train_problem(task: Countdown, index: int) -> Problem:
    return _problem(task, "train", index, next(_puzzles(task, "train", index)))


@lru_cache(maxsize=8)
def _held_out(task: Countdown, split: Split) -> tuple[Problem, ...]:
    taken: set[str] = set()
    problems: list[Problem] = []
    for index in range(task.eval_problems):
        puzzle = next((p for p in _puzzles(task, split, index) if p.key not in taken), None)
        if puzzle is None:
            raise UserError(
                f"task.eval_problems: expected at most {len(problems)} different problems of {task.difficulty} numbers "
                f"for {split}, got {task.eval_problems}: lower it, or raise task.difficulty"
            )
        taken.add(puzzle.key)
        problems.append(_problem(task, split, index, puzzle))
    return tuple(problems)


@dataclass(frozen=True)
class _Puzzle:
    numbers: tuple[int, ...]
    target: int
    solution: str

    @property
    def key(self) -> str:
        """The text whose hash decides the split."""
        return f"{sorted(self.numbers)} -> {self.target}"


def _puzzles(task: Countdown, split: Split, index: int) -> Iterator[_Puzzle]:
    """Candidates for problem `index` of a split; the first one that is not taken becomes the problem."""
    rng = random.Random(f"countdown/{task.difficulty}/{task.seed}/{split}/{index}")
    drawn = (_draw(rng, task.difficulty) for _ in range(ATTEMPTS))
    return (p for p in drawn if p.target in TARGETS and p.target not in p.numbers and split_of(p.key) == split)


def _draw(rng: random.Random, count: int) -> _Puzzle:
    """Draws numbers and joins two at a time by an operation with a whole, positive result until one is left."""
    given = tuple(rng.randint(1, LARGEST_NUMBER) for _ in range(count))
    parts = [(number, str(number), "atom") for number in given]
    while len(parts) > 1:
        (a, left, a_kind), (b, right, b_kind) = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        results = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if a % b == 0 else 0}
        symbol = rng.choice([symbol for symbol, result in results.items() if result > 0])
        kind = "sum" if symbol in "+-" else "product"
        left = f"({left})" if kind == "product" and a_kind == "sum" else left
        right = f"({right})" if b_kind != "atom" and (kind, b_kind, symbol) != ("sum", "product", symbol) else right
        parts.append((results[symbol], f"{left} {symbol} {right}", kind))
    return _Puzzle(given, parts[0][0], parts[0][1])


def _problem(task: Countdown, split: Split, index: int, puzzle: _Puzzle) -> Problem:
    listed = f"{', '.join(map(str, puzzle.numbers[:-1]))} and {puzzle.numbers[-1]}"
    rule = "exactly" if task.use_all else "at most"
    question = (
        f"Write an expression that equals {puzzle.target}, with the numbers {listed}. Use each number {rule} once. "
        "You may use +, -, *, / and parentheses."
    )
    return Problem(
        f"countdown/{split}/{index}",
        boxed_prompt(question),
        {"numbers": list(puzzle.numbers), "target": puzzle.target, "solution": puzzle.solution},
    )
