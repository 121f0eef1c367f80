"""A reward function's way to say that it cannot judge one completion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Invalid:
    """Given in place of a number: the completion is left out of its group's statistics, and counted.

    >>> Invalid("the server did not answer").reason
    'the server did not answer'
    """

    reason: str
