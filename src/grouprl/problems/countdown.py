"""Countdown: reach a target with given numbers; drawn problems in the form of TinyZero (Jiayi Pan et al. 2025)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.tasks.answers import BoxedAnswers, boxed, boxed_prompt, completion_text, final_text
from grouprl.tasks.arithmetic import UnreadableError, evaluate, numbers
from grouprl.tasks.base import DrawnProblems, Split, check_setting
from grouprl.types import Problem, UserError

LARGEST_NUMBER = 99
TARGETS = range(10, 100)
ATTEMPTS = 20_000  # draws for one problem; some settings have only a few thousand different problems


@dataclass(frozen=True)
class Countdown(DrawnProblems, BoxedAnswers):
    """The task `countdown`.

    `difficulty` is the number of given numbers, 2..6. A solution uses every number exactly once; with `use_all` off, at
    most once. Every problem has a solution that uses all numbers. Raises UserError for an option out of range.
    """

    difficulty: int = 3
    use_all: bool = True
    train_problems: int = 20_000
    eval_problems: int = 500
    seed: int = 0
    name = "countdown"
    verifier = "countdown"

    def __post_init__(self) -> None:
        check_setting("task.difficulty", self.difficulty, self.difficulty in range(2, 7), "2 to 6")
        check_setting("task.arguments.use_all", self.use_all, isinstance(self.use_all, bool), "true or false")
        super().__post_init__()

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """`countdown` with the rule of `use_all`."""
        return {"countdown": CountdownReward(self.use_all)}

    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """Numbers that reach a target. The key does not depend on the order of the numbers."""
        rng = random.Random(f"countdown/{self.difficulty}/{self.seed}/{split}/{index}")
        rule = "exactly" if self.use_all else "at most"
        for _ in range(ATTEMPTS):
            # Two numbers at a time are joined by an operation with a whole, positive result until one is left.
            chosen = [rng.randint(1, LARGEST_NUMBER) for _ in range(self.difficulty)]
            parts = [(number, str(number), "atom") for number in chosen]
            while len(parts) > 1:
                a, left, a_kind = parts.pop(rng.randrange(len(parts)))
                b, right, b_kind = parts.pop(rng.randrange(len(parts)))
                results = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if a % b == 0 else 0}
                symbol = rng.choice([symbol for symbol, result in results.items() if result > 0])
                kind = "sum" if symbol in "+-" else "product"
                left = f"({left})" if kind == "product" and a_kind == "sum" else left
                binds = b_kind == "atom" or (kind, b_kind) == ("sum", "product")
                right = right if binds else f"({right})"
                parts.append((results[symbol], f"{left} {symbol} {right}", kind))
            target, solution, _ = parts[0]
            if target not in TARGETS or target in chosen:
                continue
            question = (
                f"Write an expression that equals {target}, with the numbers {', '.join(map(str, chosen[:-1]))} and "
                f"{chosen[-1]}. Use each number {rule} once. You may use +, -, *, / and parentheses."
            )
            columns = {"numbers": chosen, "target": target, "solution": solution}
            problem = Problem(f"countdown/{split}/{index}", boxed_prompt(question), columns)
            yield f"{sorted(chosen)} -> {target}", problem

    def too_few(self, split: Split, count: int) -> UserError:
        """The error for a split with only `count` different problems."""
        return UserError(
            f"task.eval_problems: expected at most {count} different problems of {self.difficulty} numbers for "
            f"{split}, got {self.eval_problems}: lower it, or raise task.difficulty"
        )

    def gold(self, problem: Problem) -> str | None:
        """The solution with its result, and in a box."""
        solution = problem.columns["solution"]
        return f"{solution} = {problem.columns['target']}. {boxed(solution)}"


@dataclass(frozen=True)
class CountdownReward:
    r"""1.0 when the final answer is an expression that equals the target and uses every number exactly once, else 0.0.

    Without `use_all` it uses every number at most once. `tasks.answers.final_text` finds the answer, which may also
    read `expression = target`. An expression has whole numbers, `+ - * /` (also × ÷ \times \cdot \div \frac) and
    parentheses, and is computed exactly. Other text is no solution: powers, a leading minus sign, juxtaposed numbers,
    names, over 1000 characters, over 20 nested brackets.

    Range: 0 or 1, without partial credit. Failure modes: it ignores the reasoning, so trying combinations pays as much
    as thinking; it ignores a right solution outside of the final answer.
    """

    use_all: bool = True

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        *,
        numbers: Sequence[Sequence[int]],
        target: Sequence[int],
        **columns: Any,
    ) -> list[float | None]:
        """1.0 or 0.0 for each completion."""
        return [
            float(self._solves(completion, allowed, goal))
            for completion, allowed, goal in zip(completions, numbers, target, strict=True)
        ]

    def _solves(self, completion: Any, allowed: Sequence[int], target: int) -> bool:
        answer = final_text(completion_text(completion))
        if answer is None:
            return False
        expression, equals, result = answer.partition("=")
        try:
            used = Counter(numbers(expression))  # checked before the computation, which it bounds
            fits = used == Counter(allowed) if self.use_all else used <= Counter(allowed)
            return fits and evaluate(expression) == target and (not equals or evaluate(result) == target)
        except UnreadableError:
            return False
