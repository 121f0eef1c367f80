"""Assigns prompts to splits by their text, so that no seed and no order of lines can mix the splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from grouprl.tasks.base import Split
from grouprl.types import Problem


def position(text: str) -> float:
    """A pseudo-random number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48


def split_of(text: str) -> Split:
    """The split of a generated text: test with 10 %, validation with 10 %, else train."""
    place = position(text)
    if place < 0.1:
        return "test"
    return "validation" if place < 0.2 else "train"


def partition(texts: Iterable[str], *, validation: float, test: float) -> dict[str, Split]:
    """The split of every text of a list. Shares are in [0, 1); a positive share gets at least one text.

    Two texts have no validation, and a single text is for training: `or_shared` fills what is empty then.
    """
    ordered = sorted(set(texts), key=position)
    tests, validations = ceil(test * len(ordered)), ceil(validation * len(ordered))
    validations = max(0, min(validations, len(ordered) - tests - 1))
    tests = max(0, min(tests, len(ordered) - 1))
    held_out: dict[str, Split] = dict.fromkeys(ordered[:tests], "test")
    held_out |= dict.fromkeys(ordered[tests : tests + validations], "validation")
    return {text: held_out.get(text, "train") for text in ordered}


def or_shared(parts: Mapping[Split, Sequence[Problem]]) -> dict[Split, Sequence[Problem]]:
    """The splits with a problem in each: one without any is the other held-out one, or the first problem of train."""
    test = parts["test"] or parts["validation"] or parts["train"][:1]
    return {"train": parts["train"], "validation": parts["validation"] or test, "test": test}
