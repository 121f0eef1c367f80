"""Completions that a reward function cannot judge: how it says so, and how many of them stop a run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.types import UserError

_WINDOW = 200  # completions over which the invalid ones are counted, if a step has fewer
_FEW = 50  # a share of fewer completions than this says little


@dataclass(frozen=True)
class Invalid:
    """Given in place of a number: the completion is left out of its group's statistics, and counted.

    >>> Invalid("the server did not answer").reason
    'the server did not answer'
    """

    reason: str


class InvalidCount:
    """Counts the invalid completions of a step, and stops the run while they still come in."""

    def __init__(self, share: float, window: deque[tuple[int, int]], completions: int) -> None:
        self._share, self._window, self._completions = share, window, completions
        self._reasons: Counter[str] = Counter()
        while window and completions + sum(seen for seen, _ in window) - window[0][0] >= _WINDOW:
            window.popleft()

    def add(self, reasons: Sequence[str]) -> None:
        """The reasons of a group's completions, '' for valid ones. Raises UserError beyond the allowed share."""
        self._reasons.update(filter(None, reasons))
        invalid = self._reasons.total() + sum(bad for _, bad in self._window)
        seen = self._completions + sum(seen for seen, _ in self._window)
        if invalid > self._share * max(seen, _FEW):
            self._stop(invalid, seen)

    def _stop(self, invalid: int, seen: int) -> None:
        told = "; ".join(f"{reason} ({times} times)" for reason, times in self._reasons.most_common(3))
        raise UserError(
            f"rewards: expected valid rewards for all but {self._share:.0%} of the completions "
            f"(scoring.max_invalid), got {invalid} invalid of the last {seen}: {told}. Mend the reward"
        )

    def close(self) -> None:
        """The step is over. Raises UserError when it had not one valid completion."""
        if self._share < 1 and 0 < self._completions == self._reasons.total():
            self._stop(self._completions, self._completions)
        self._window.append((self._completions, self._reasons.total()))
