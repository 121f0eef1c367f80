"""The newest sign of progress of this process and what its threads do now; `run.watchdog` reads it, nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Progress:
    """Counts signs of progress. A mark costs less than a microsecond, so a decode step can give one."""

    def __init__(self) -> None:
        self.marks = 0  # since the process began; exact only within one thread, which is enough to see a change
        self._doing: dict[object, Callable[[], str]] = {}

    def mark(self) -> None:
        """Says that something was finished: a decode step, a pack, the scores of a call."""
        self.marks += 1

    @contextmanager
    def doing(self, what: Callable[[], str]) -> Iterator[None]:
        """Names the work of the block, for a stall inside it; `what` is asked only then. Both ends are marks."""
        name, key = threading.current_thread().name, object()
        self._doing[key] = lambda: f"{name}: {what()}"
        self.mark()
        try:
            yield
        finally:
            self.mark()
            del self._doing[key]

    def now(self) -> list[str]:
        """Describes the work in progress, oldest first."""
        return [describe() for describe in list(self._doing.values())]


PROGRESS = Progress()
"""Of this process."""
