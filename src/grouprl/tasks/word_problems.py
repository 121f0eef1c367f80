r"""Procedural grade-school word problems in GSM8K's form, and cold-start completions for a small model to imitate.

A problem is a short story (`stories.py`) with 1 to 4 operations. Problem i of a split is a pure function of (seed,
split, i). A hash of its text decides the split, so that no two splits share a problem, whatever the seeds.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from grouprl.tasks.answers import gold_answer
from grouprl.tasks.base import Split
from grouprl.tasks.lazy_problems import LazyProblems
from grouprl.tasks.marked_solutions import MarkedSolutions
from grouprl.tasks.splits import split_of
from grouprl.tasks.stories import SYMBOLS, Operation, Story, make_story
from grouprl.types import Problem, UserError

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
class WordProblems(MarkedSolutions):
    """The task `word_problems`.

    `difficulty` is the largest number of operations, 1..4; all numbers are at most 25 * difficulty. `eval_problems` is
    the size of validation and of test. Raises UserError for an option out of range.
    """

    difficulty: int = 4
    train_problems: int = 20_000
    eval_problems: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, ok, allowed in (
            ("difficulty", self.difficulty, self.difficulty in range(1, 5), "1, 2, 3 or 4"),
            ("train_problems", self.train_problems, self.train_problems >= 1, "at least 1"),
            ("eval_problems", self.eval_problems, self.eval_problems >= 1, "at least 1"),
        ):
            if not ok:
                raise UserError(f"task.{name}: expected {allowed}, got {value!r}: change it")

    @property
    def name(self) -> str:
        """`word_problems`."""
        return "word_problems"

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split. Train problems are made on access; held-out problems are all different."""
        if split == "train":
            return LazyProblems(self.train_problems, partial(_train_problem, self))
        return _held_out(self, split)

    @classmethod
    def example(cls) -> Problem:
        """The first problem."""
        return cls().problems("train")[0]

    def gold(self, problem: Problem) -> str | None:
        """The solution step by step."""
        return worked_solution(problem)


@lru_cache(maxsize=1 << 16)
def _train_problem(task: WordProblems, index: int) -> Problem:
    return _problem("train", index, next(_stories(task, "train", index)))


@lru_cache(maxsize=8)
def _held_out(task: WordProblems, split: Split) -> tuple[Problem, ...]:
    stories = unique_stories(_stories(task, split, index) for index in range(task.eval_problems))
    return tuple(_problem(split, index, story) for index, story in enumerate(stories))


def unique_stories(candidates: Iterable[Iterator[Story]]) -> list[Story]:
    """Takes from every iterator in turn the first story whose question is not taken yet."""
    taken: dict[str, Story] = {}
    for stories in candidates:
        story = next(story for story in stories if story.question not in taken)
        taken[story.question] = story
    return list(taken.values())


def _stories(task: WordProblems, split: Split, index: int) -> Iterator[Story]:
    """Candidates for problem `index` of a split: drawn stories whose text belongs to the split."""
    drawn = (
        make_story(random.Random(f"word_problems/{task.seed}/{split}/{index}/{attempt}"), task.difficulty)
        for attempt in itertools.count()
    )
    return (story for story in drawn if split_of(story.question) == split)


def _problem(split: Split, index: int, story: Story) -> Problem:
    lines = [
        f"{o.left} {o.symbol} {o.right} = <<{o.left}{o.symbol}{o.right}={o.result}>>{o.result}"
        for o in story.operations
    ]
    answer = "\n".join([*lines, f"#### {story.operations[-1].result}"])
    return Problem(
        f"word_problems/{split}/{index}",
        ({"role": "user", "content": story.question},),
        {"question": story.question, "answer": answer},
    )


def operations(problem: Problem) -> tuple[Operation, ...]:
    """The chain of operations of a problem, read from the calculator marks (`<<2+3=5>>`) of its gold solution."""
    return tuple(
        Operation(int(left), symbol, int(right)) for left, symbol, right in _STEP.findall(problem.columns["answer"])
    )


def worked_solution(problem: Problem) -> str:
    r"""The solution step by step, such as `15 - 3 = 12. 12 - 5 = 7. \boxed{7}`."""
    steps = [f"{step.left} {step.symbol} {step.right} = {step.result}." for step in operations(problem)]
    return " ".join([*steps, f"\\boxed{{{gold_answer(problem.columns['answer'])}}}"])


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


def cold_start_pairs(task: WordProblems, count: int, worked_share: float, seed: int) -> Iterator[tuple[Problem, str]]:
    """`count` pairs of a train problem and a completion: worked with probability `worked_share`, else a direct guess.

    The train problems come in order and start again after the last one; every pair draws its own completion.
    """
    train = task.problems("train")
    for index in range(count):
        problem = train[index % len(train)]
        rng = random.Random(f"cold_start/{seed}/{index}")
        yield problem, worked_solution(problem) if rng.random() < worked_share else direct_guess(problem, rng)
