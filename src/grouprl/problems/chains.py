"""Chains of operations, each named by a phrase, and attempts that get the arithmetic right and the phrases wrong.

A model that imitates the attempts works out every problem and is mostly wrong. A habit of working does not help it:
rewards must teach the meaning of each phrase (`grouprl train ladder`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from grouprl.problems.stories import BOYS, GIRLS, ITEMS, SYMBOLS, Operation
from grouprl.problems.word_problems import operations, worked_solution
from grouprl.tasks.answers import EQUATION_STEPS, BoxedAnswers, boxed
from grouprl.tasks.base import DrawnProblems, Split, check_setting
from grouprl.types import Problem

_LARGEST = 99  # of all numbers
_ASKED = ". How many now?"
_RIGHT, _HABIT = 0.2, 0.5  # chance that an attempt takes a phrase for its operation, and for its usual mistake

# A phrase, its operation and its usual mistake.
_PHRASES = {
    "finds {k} more": "+-",
    "buys {k}": "+*",
    "gets {k} as a gift": "+/",
    "picks up {k}": "+-",
    "gives away {k}": "-*",
    "loses {k}": "-/",
    "sells {k}": "-+",
    "eats {k}": "-*",
    "has {k} times as many": "*/",
    "multiplies them by {k}": "*+",
    "gets {k} for each": "*-",
    "makes {k} of every one": "*/",
    "keeps one of {k} equal piles": "/-",
    "shares them among {k} friends": "/+",
    "divides them by {k}": "/*",
    "packs them into {k} boxes": "/-",
}


@dataclass(frozen=True)
class Chains(DrawnProblems, BoxedAnswers):
    """The task `chains`.

    `difficulty` is the largest number of operations, 1..8; all numbers are at most 99. `eval_problems` is the size of
    validation and of test. Raises UserError for an option out of range.
    """

    difficulty: int = 4
    train_problems: int = 20_000
    eval_problems: int = 500
    seed: int = 0
    name = "chains"
    default_step_rewards = EQUATION_STEPS

    def __post_init__(self) -> None:
        check_setting("task.difficulty", self.difficulty, self.difficulty in range(1, 9), "1 to 8")
        super().__post_init__()

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """1.0 for the right answer."""
        return {"correct_answer": 1.0}

    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """Chains, each with a random stream of its own."""
        for attempt in itertools.count():
            rng = random.Random(f"chains/{self.seed}/{split}/{index}/{attempt}")
            value = rng.randint(2, 20)
            said, lines = [f"{rng.choice(GIRLS + BOYS)} has {value} {rng.choice(ITEMS)}"], []
            for _ in range(rng.randint(1, self.difficulty)):
                symbol = rng.choice([symbol for symbol in SYMBOLS if _possible(value, symbol)])
                step = Operation(value, symbol, rng.choice(_possible(value, symbol)))
                said.append(rng.choice([text for text in _PHRASES if _PHRASES[text][0] == symbol]).format(k=step.right))
                value = step.result
                lines.append(f"<<{step.left}{symbol}{step.right}={value}>>")
            question = f"{', '.join(said)}{_ASKED}"
            columns = {"question": question, "answer": "\n".join([*lines, f"#### {value}"])}
            yield question, Problem(f"chains/{split}/{index}", ({"role": "user", "content": question},), columns)

    def gold(self, problem: Problem) -> str | None:
        """The solution step by step."""
        return worked_solution(problem)

    def worked(self, problem: Problem) -> str:
        """The completion that a cold start imitates: right arithmetic with operations that are mostly wrong."""
        question = problem.columns["question"]
        rng, chain = random.Random(f"attempt/{question}"), operations(problem)
        steps, value = [], chain[0].left
        for said, step in zip(question.removesuffix(_ASKED).split(", ")[1:], chain, strict=True):
            shares = dict(zip(_PHRASES[said.replace(str(step.right), "{k}")], (_RIGHT, _HABIT), strict=True))
            possible = [symbol for symbol in SYMBOLS if step.right in _possible(value, symbol)]
            chances = [shares.get(symbol, (1 - _RIGHT - _HABIT) / 2) for symbol in possible]
            taken = Operation(value, rng.choices(possible, chances)[0], step.right)
            steps.append(f"{taken.left} {taken.symbol} {taken.right} = {taken.result}.")
            value = taken.result
        return " ".join([*steps, boxed(str(value))])


def _possible(value: int, symbol: str) -> Sequence[int]:
    """The operands with which a number stays whole and within 1.._LARGEST."""
    divisors = [k for k in range(2, 10) if symbol != "/" or value % k == 0]
    return [k for k in divisors if 1 <= SYMBOLS[symbol](value, k) <= _LARGEST]
