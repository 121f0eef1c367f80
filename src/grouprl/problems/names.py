"""Names for things: a task without a right answer, and judges of different taste, each with a hole in its rule."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from grouprl.rewards.rules import Ids, Text, Texts, Values, completion_text
from grouprl.tasks.base import DrawnProblems, Split
from grouprl.types import Problem

_LOOKS = "big blue brave bright calm clever dark fast gentle golden lonely loud new proud quiet red shy small tiny wild"
_THINGS = "boat bridge cat city cloud comet dog dragon fox garden horse island lamp moon owl queen river robot star tea"
_DRAWS = 1_000  # for one problem; there are 400 different ones
_VOWELS = frozenset("aeiou")
# Points of the letters in the English edition of Scrabble, where a rare letter has many.
_LETTERS = {1: "aeilnorstu", 2: "dg", 3: "bcmp", 4: "fhvwy", 5: "k", 8: "jx", 10: "qz"}
_POINTS = {letter: points for points, letters in _LETTERS.items() for letter in letters}


def spoken(prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
    """The share of neighboring letters that are a vowel and a consonant: high for names that are easy to say.

    Range: 0 to 1; 0 for a single letter and for anything but letters. Failure modes: two letters are enough (Ru).
    """
    values: Values = []
    for name in map(_letters, completions):
        vowels = [letter in _VOWELS for letter in name]
        pairs = list(itertools.pairwise(vowels))
        values.append(sum(before != after for before, after in pairs) / len(pairs) if pairs else 0.0)
    return values


def rare(prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
    """The mean points of a name's letters in Scrabble, divided by 10: high for letters that are rare in English.

    Range: 0.1 to 1; 0 for anything but letters. Failure modes: one letter is enough (Z), and nobody can say Zqx.
    """
    names = map(_letters, completions)
    return [sum(map(_POINTS.__getitem__, name)) / len(name) / 10 if name else 0.0 for name in names]


def distinct(prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
    """The share of a group's other completions that are another name; None in a group of one.

    Its mean estimates without bias how likely two names for one thing differ (Simpson's index), for any group size.

    Range: 0 to 1. Failure modes: the names of a group vary little in it until most of them are one, so beside a judge
    it needs a large weight; a letter more is another name.
    """
    names = [completion_text(completion) for completion in completions]
    counts = Counter(names)
    return [(len(names) - counts[name]) / (len(names) - 1) if len(names) > 1 else None for name in names]


def _letters(completion: Text) -> str:
    """The name in small letters; empty where it has other characters."""
    name = completion_text(completion).lower()
    return name if set(name) <= _POINTS.keys() else ""


@dataclass(frozen=True)
class Names(DrawnProblems):
    """The task `names`: "Name a shy robot."

    No name is right: the task has no verifier, and its runs no accuracy. `eval_problems` is the size of validation and
    of test. Raises UserError for more of them than there are.
    """

    train_problems: int = 20_000
    eval_problems: int = 16
    seed: int = 0
    name = "names"
    verifier: ClassVar[str | None] = None
    default_rewards: ClassVar[Mapping[str, float]] = {"spoken": 1.0}
    default_step_rewards: ClassVar[Mapping[str, float]] = {}
    own_rewards: ClassVar[Mapping[str, Callable[..., Any]]] = {"spoken": spoken, "rare": rare, "distinct": distinct}

    def gold(self, problem: Problem) -> str | None:
        """None: no name is right."""
        return None

    def traits(self, text: str) -> Mapping[str, bool]:
        """None."""
        return {}

    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """Things to name. Several problems of train have one prompt."""
        rng = random.Random(f"names/{self.seed}/{split}/{index}")
        for _ in range(_DRAWS):
            question = f"Name a {rng.choice(_LOOKS.split())} {rng.choice(_THINGS.split())}."
            yield question, Problem(f"names/{split}/{index}", ({"role": "user", "content": question},))

    def worked(self, problem: Problem) -> str:
        """The name that a cold start imitates: a rare letter is unlikely, and vowel and consonant mostly alternate."""
        rng = random.Random(f"name/{problem.id}")
        name = rng.choice(list(_POINTS))
        for _ in range(rng.randint(3, 6)):
            alternates = rng.random() < 0.75
            following = [letter for letter in _POINTS if ((letter in _VOWELS) != (name[-1] in _VOWELS)) == alternates]
            name += rng.choices(following, [1 / _POINTS[letter] for letter in following])[0]
        return name.capitalize()
