"""The task `search_notes`: find the answer in built-in notes, with a tool that searches and one that reads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from grouprl.environments.base import exchange
from grouprl.leaves import leaf
from grouprl.tasks.answers import BoxedAnswers, boxed
from grouprl.tasks.base import DrawnProblems, Split
from grouprl.types import Problem

_PLACES = ("the attic", "the cellar", "the garage", "the kitchen", "the office", "the shed", "the studio", "the van")
_COLORS = ("blue", "green", "red", "white", "yellow")
_FOUND = 3  # notes of a search


@cache
def notes() -> Mapping[str, str]:
    """The notes by title: who keeps which things where, and when that was moved."""
    rng, notes_by_title = random.Random("search_notes"), {}
    stories = leaf("stories")
    for name in (*stories.GIRLS, *stories.BOYS):
        for item in rng.sample(stories.ITEMS, 4):
            color, first, then = rng.choice(_COLORS), *rng.sample(_PLACES, 2)
            notes_by_title[f"{name} and the {color} {item}"] = (
                f"{name} kept the {color} {item} in {first}. In May {name} moved them to {then}."
            )
    return notes_by_title


def search(words: str) -> str:
    """Searches the titles of the notes.

    Args:
        words: Words that a title should have.
    """
    wanted = set(words.lower().split())
    ranked = sorted(notes(), key=lambda title: (-len(wanted & set(title.lower().split())), title))
    return "\n".join(title for title in ranked[:_FOUND] if wanted & set(title.lower().split())) or "nothing"


def read(title: str) -> str:
    """Reads a note.

    Args:
        title: The whole title of the note.
    """
    return notes().get(title, "There is no note with this title.")


@dataclass(frozen=True)
class SearchNotes(DrawnProblems, BoxedAnswers):
    """The task `search_notes`: where are somebody's things now? Each note is in one split."""

    train_problems: int = 400
    eval_problems: int = 20
    seed: int = 0
    name = "search_notes"

    @property
    def tools(self) -> Sequence[Any]:
        """What the policy may call."""
        return search, read

    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """A question about each note, in a random order."""
        titles = random.Random(f"search_notes/{self.seed}/{split}/{index}").sample(sorted(notes()), len(notes()))
        for title in titles:
            name, _, things = title.partition(" and ")
            text = f"Where does {name} keep {things} now? Search the notes, and write the place in a box."
            columns = {"title": title, "answer": notes()[title].rpartition(" to ")[2].rstrip(".")}
            yield title, Problem(f"search_notes/{title}", ({"role": "user", "content": text},), columns)

    def gold(self, problem: Problem) -> str | None:
        """The place in a box."""
        return boxed(problem.columns["answer"])

    def worked(self, problem: Problem) -> Sequence[Mapping[str, Any]]:
        """A search, the note, and the place in a box."""
        title = problem.columns["title"]
        words = title.replace(" and the", "")
        return (
            *exchange("search", {"words": words}, search(words)),
            *exchange("read", {"title": title}, read(title)),
            {"role": "assistant", "content": boxed(problem.columns["answer"])},
        )
