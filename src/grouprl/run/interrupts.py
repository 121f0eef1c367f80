"""Ctrl-C: the first asks the run to save and stop after its step, the second stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


class StopRequest:
    """Whether somebody asked for the end of the run."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.asked = False
        self._announce = announce

    def handle(self, number: int, frame: FrameType | None) -> None:
        """A signal handler in the form of the standard library."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._announce("Stopping: the step is finished and saved first. Once more to stop at once.")


@contextmanager
def stop_on_signal(announce: Callable[[str], None]) -> Iterator[StopRequest]:
    """Takes SIGINT and SIGTERM while the block runs. Outside the main thread there are no signals to take."""
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
