"""Which split a question belongs to: decided by its text, so that no seed and no order of lines can mix splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from math import ceil

from grouprl.tasks.base import Split
from grouprl.types import UserError


def position(text: str) -> float:
    """A fixed pseudo-random place in [0, 1) for a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48


def split_of(text: str) -> Split:
    """The split of a text that nobody has listed: 10 % test, 10 % validation, the rest train."""
    place = position(text)
    if place < 0.1:
        return "test"
    return "validation" if place < 0.2 else "train"


def partition(texts: Iterable[str], *, validation: float, test: float) -> dict[str, Split]:
    """The split of every text of a finite list. Shares are in [0, 1); a positive one gets at least one text.

    Raises UserError when nothing is left to train on.
    """
    ordered = sorted(set(texts), key=position)
    tests, validations = ceil(test * len(ordered)), ceil(validation * len(ordered))
    if len(ordered) <= tests + validations:
        raise UserError(
            f"expected more than {tests + validations} different questions, got {len(ordered)}: "
            "add some, so that there are both held-out ones and some to train on"
        )
    held_out: dict[str, Split] = dict.fromkeys(ordered[:tests], "test")
    held_out |= dict.fromkeys(ordered[tests : tests + validations], "validation")
    return {text: held_out.get(text, "train") for text in ordered}
