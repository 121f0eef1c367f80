"""Where the time of a step goes: the one clock of `grpo_step`, in seconds by part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Runs from its making; `with clock("learn"):` adds what the block takes to that part."""

    def __init__(self, *parts: str) -> None:
        self._began = time.perf_counter()
        self._seconds = dict.fromkeys(parts, 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Times a block."""
        began = time.perf_counter()
        yield
        self._seconds[part] += time.perf_counter() - began

    def metrics(self, tokens: float) -> dict[str, float]:
        """`time/...` of each part and in total, and the tokens per second that `tokens` come to."""
        total = time.perf_counter() - self._began
        parts = {f"time/{part}": seconds for part, seconds in self._seconds.items()}
        return {"tokens_per_second": tokens / total, **parts, "time/total": total}
