"""Ends a process that makes no progress: it names what was going on and shows the stack of every thread."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from grouprl.forward.progress import PROGRESS
from grouprl.record.write import OPEN
from grouprl.types import UserError

_SWITCH = "GROUPRL_STALL_SECONDS"  # environment variable: a fact of the machine, which changes no result
_WRITING_SECONDS = 5.0
_SECONDS = 1800.0  # a decode step or a pack takes seconds, on the slowest machine minutes


def stall_seconds() -> float:
    """GROUPRL_STALL_SECONDS: the longest time without a decode step, a finished pack or a scored call; 1800.

    Raises:
        UserError: it is no number above 0.
    """
    text = os.environ.get(_SWITCH, "") or str(_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise UserError(f"{_SWITCH}: expected seconds above 0, got {text!r}: correct it, or unset it")
    return seconds


@contextmanager
def end_when_stalled(
    seconds: float, *, console: TextIO | None = None, end: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """Ends this process with code 1 when the block makes no progress for `seconds`; nothing is saved.

    The last checkpoint stays as it is, and the reward workers end with the process. Work before the first sign of
    progress, such as a download, has no limit. Time in which the process was suspended does not count.

    Args:
        seconds: the limit.
        console: where the stacks are written; None = standard error. It has a file descriptor.
        end: ends the process; called in a thread of its own.
    """
    over, first = threading.Event(), PROGRESS.marks

    def watch() -> None:
        # Counted in ticks, not by the clock, which also runs while Ctrl-Z has the process stopped.
        tick, still, seen = seconds / 20, 0, first
        while not over.wait(tick):
            still = still + 1 if PROGRESS.marks == seen != first else 0
            seen = PROGRESS.marks
            if still * tick >= seconds:
                _report(seconds, console or sys.__stderr__ or sys.stderr)
                writer = threading.Thread(target=_record, args=[seconds], daemon=True)  # the disk may be what stalls
                writer.start()
                writer.join(_WRITING_SECONDS)
                end(1)
                return

    watcher = threading.Thread(target=watch, daemon=True, name="watchdog")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(1.0)


def _report(seconds: float, console: TextIO) -> None:
    work = PROGRESS.now() or ["no named work"]
    threads = [f"{thread.name} 0x{thread.ident or 0:016x}" for thread in threading.enumerate()]
    lines = [
        f"error: no progress for {seconds:g} s: the process ends; resume from the last checkpoint with --resume.",
        *(f"  in progress: {label}" for label in work),
        f"  threads: {', '.join(threads)}",
        f"  (on a slower machine, set a larger {_SWITCH})",
    ]
    console.write("\n" + "\n".join(lines) + "\n")
    console.flush()
    faulthandler.dump_traceback(file=console, all_threads=True)


def _record(seconds: float) -> None:
    work = ", ".join(PROGRESS.now()) or "no named work"
    for record in tuple(OPEN):
        with suppress(OSError):
            record.fail(UserError(f"no progress for {seconds:g} s ({_SWITCH}), in progress: {work}"))
