"""The clock of `grpo_step`, which measures the seconds of each part of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Starts when it is created; `with clock("learn"):` adds the seconds of the block to that part."""

    def __init__(self, *parts: str) -> None:
        self._began = time.perf_counter()
        self._seconds = dict.fromkeys(parts, 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Adds the seconds of the block to a part."""
        began = time.perf_counter()
        yield
        self._seconds[part] += time.perf_counter() - began

    def metrics(self, tokens: float) -> dict[str, float]:
        """The metrics `time/...` of each part and in total, in seconds, and the tokens per second for `tokens`."""
        total = time.perf_counter() - self._began
        parts = {f"time/{part}": seconds for part, seconds in self._seconds.items()}
        return {"tokens_per_second": tokens / total, **parts, "time/total": total}
