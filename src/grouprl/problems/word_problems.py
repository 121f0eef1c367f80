r"""Procedural grade-school word problems in GSM8K's form, and cold-start completions for a small model to imitate.

A problem is a short story (`stories.py`) with 1 to 4 operations.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.problems.stories import SYMBOLS, Operation, make_story
from grouprl.tasks.answers import EQUATION_STEPS, BoxedAnswers, boxed, gold_answer
from grouprl.tasks.base import DrawnProblems, Split, check_setting
from grouprl.types import Problem

_STEP = re.compile(r"<<([0-9]+)([-+*/])([0-9]+)=[0-9]+>>")
LARGEST_GUESS = 200

_GUESSES = (
    "I think there are {0}. \\boxed{{{0}}}",
    "The answer is {0}. \\boxed{{{0}}}",
    "It must be {0}. \\boxed{{{0}}}",
    "I guess {0}. \\boxed{{{0}}}",
)
# The shares of right guesses and of each mistake. Dropping the last operation is more likely than being right, so that
# the most likely guess is usually wrong.
_GUESS_SHARES = {"right": 0.25, "last_dropped": 0.45, "other_operation": 0.1, "distractor": 0.1, "slip": 0.1}


@dataclass(frozen=True)
class WordProblems(DrawnProblems, BoxedAnswers):
    """The task `word_problems`.

    `difficulty` is the largest number of operations, 1..4; all numbers are at most 25 * difficulty. `eval_problems` is
    the size of validation and of test. Raises UserError for an option out of range.
    """

    difficulty: int = 4
    train_problems: int = 20_000
    eval_problems: int = 500
    seed: int = 0
    name = "word_problems"
    default_step_rewards = EQUATION_STEPS

    def __post_init__(self) -> None:
        check_setting("task.difficulty", self.difficulty, self.difficulty in range(1, 5), "1, 2, 3 or 4")
        super().__post_init__()

    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """Stories, each with a random stream of its own."""
        for attempt in itertools.count():
            rng = random.Random(f"word_problems/{self.seed}/{split}/{index}/{attempt}")
            story = make_story(rng, self.difficulty)
            lines = [
                f"{o.left} {o.symbol} {o.right} = <<{o.left}{o.symbol}{o.right}={o.result}>>{o.result}"
                for o in story.operations
            ]
            answer = "\n".join([*lines, f"#### {story.operations[-1].result}"])
            prompt = ({"role": "user", "content": story.question},)
            columns = {"question": story.question, "answer": answer}
            yield story.question, Problem(f"word_problems/{split}/{index}", prompt, columns)

    def gold(self, problem: Problem) -> str | None:
        """The solution step by step."""
        return worked_solution(problem)

    def worked(self, problem: Problem) -> str | Sequence[Mapping[str, Any]]:
        """The completion that a cold start imitates: the solution, or messages where a tool is called."""
        return worked_solution(problem)


def operations(problem: Problem) -> tuple[Operation, ...]:
    """The chain of operations of a problem, read from the calculator marks (`<<2+3=5>>`) of its gold solution."""
    return tuple(
        Operation(int(left), symbol, int(right)) for left, symbol, right in _STEP.findall(problem.columns["answer"])
    )


def worked_solution(problem: Problem) -> str:
    r"""The solution step by step, such as `15 - 3 = 12. 12 - 5 = 7. \boxed{7}`."""
    steps = [f"{step.left} {step.symbol} {step.right} = {step.result}." for step in operations(problem)]
    return " ".join([*steps, boxed(gold_answer(problem.columns["answer"]))])


def direct_guess(problem: Problem, rng: random.Random) -> str:
    r"""A completion without reasoning steps, such as `I think there are 7. \boxed{7}`; a quarter of them are right."""
    chain = operations(problem)
    last = chain[-1]
    used = {str(number) for step in chain for number in (step.left, step.right)}
    unused = [int(number) for number in re.findall("[0-9]+", problem.columns["question"]) if number not in used]
    guesses = {
        "right": [last.result],
        "last_dropped": [last.left],
        "other_operation": [Operation(last.left, symbol, last.right).result for symbol in SYMBOLS],
        "distractor": unused or [last.right],
        "slip": [last.result + by for by in (-10, -1, 1, 10)],
    }
    kind = rng.choices(list(_GUESS_SHARES), list(_GUESS_SHARES.values()))[0]
    wrong = [guess for guess in guesses[kind] if 0 <= guess <= LARGEST_GUESS and guess != last.result]
    return rng.choice(_GUESSES).format(rng.choice(wrong or guesses["right"]))


def cold_start_pairs(
    task: WordProblems, count: int, worked_share: float, seed: int
) -> Iterator[tuple[Problem, str | Sequence[Mapping[str, Any]]]]:
    """`count` pairs of a train problem and a completion: worked with probability `worked_share`, else a direct guess.

    The train problems come in order and start again after the last one; every pair draws its own completion.
    """
    train = task.problems("train")
    for index in range(count):
        problem = train[index % len(train)]
        rng = random.Random(f"cold_start/{seed}/{index}")
        yield problem, task.worked(problem) if rng.random() < worked_share else direct_guess(problem, rng)
