"""Ctrl-C: the first asks the run to save and stop after its step, the second stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


class StopRequest:
    """Whether the user asked the run to stop."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.asked = False
        self._at_once = False
        self._announce = announce

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal; the first sets `asked`, the second stops at once."""
        if self.asked:
            self._at_once = True
            raise KeyboardInterrupt
        self.asked = True
        self._announce("Stopping after this step is saved. Press Ctrl-C again to stop now.")

    def check(self) -> None:
        """Raises KeyboardInterrupt after a second signal: Python drops the first one that meets a finalizer."""
        if self._at_once:
            raise KeyboardInterrupt


@contextmanager
def stop_on_signal(announce: Callable[[str], None]) -> Iterator[StopRequest]:
    """Handles SIGINT and SIGTERM while the block runs; does nothing outside the main thread."""
    request = StopRequest(announce)
    if current_thread() is not main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
