"""Invalid completions: how a reward function reports that it cannot score one, and how many stop a run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.types import UserError

_WINDOW = 200  # completions over which invalid ones are counted, if a step has fewer
_FEW = 50  # the share is computed over at least so many completions


@dataclass(frozen=True)
class Invalid:
    """Returned instead of a number: the group's statistics exclude the completion, and it is counted as invalid.

    >>> Invalid("the server did not answer").reason
    'the server did not answer'
    """

    reason: str


class InvalidCount:
    """Counts the invalid completions of a step, and stops the run as soon as there are too many."""

    def __init__(self, share: float, window: deque[tuple[int, int]], completions: int) -> None:
        self._share, self._window, self._completions = share, window, completions
        self._reasons: Counter[str] = Counter()
        while window and completions + sum(count for count, _ in window) - window[0][0] >= _WINDOW:
            window.popleft()

    def add(self, reasons: Sequence[str]) -> None:
        """Adds the reasons of a group's completions, '' for valid ones. Raises UserError beyond the allowed share."""
        self._reasons.update(filter(None, reasons))
        invalid = self._reasons.total() + sum(bad for _, bad in self._window)
        total = self._completions + sum(completions for completions, _ in self._window)
        if invalid > self._share * max(total, _FEW):
            self._stop(invalid, total)

    def _stop(self, invalid: int, total: int) -> None:
        reasons = "; ".join(f"{reason} ({times} times)" for reason, times in self._reasons.most_common(3))
        raise UserError(
            f"rewards: expected valid rewards for all but {self._share:.0%} of the completions "
            f"(rollout.scoring.max_invalid), got {invalid} invalid of the last {total}: {reasons}. Fix the reward"
        )

    def close(self) -> None:
        """Ends the step. Raises UserError when it had no valid completion."""
        if self._share < 1 and 0 < self._completions == self._reasons.total():
            self._stop(self._completions, self._completions)
        self._window.append((self._completions, self._reasons.total()))
