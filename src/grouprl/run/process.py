"""A run as a process: `compare` and `lab` start one in the same way, and Ctrl-C stops one after its step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType

from grouprl.ranks import LeftError, Ranks
from grouprl.record.files import json_text, open_to_write
from grouprl.record.layout import RunDirectory


def start_run(
    run: RunDirectory, settings: Sequence[str], log: Path, *, verb: str = "train", resume: bool = False
) -> subprocess.Popen[bytes]:
    """Starts `grouprl train`, or another verb that makes a run, as a process that outlives this one.

    The process is in a session of its own: Ctrl-C in this terminal does not reach it. SIGINT or SIGTERM asks it to
    save and stop after its step.

    Args:
        run: the run directory; it determines `name` and `runs_dir`.
        settings: configuration files, names of recipes and changes such as steps=10.
        log: the file to which its output is appended; the folder exists.
        verb: train, sft, dpo or reward-model.
        resume: continue from the newest checkpoint.
    """
    directory = [f"name={json_text(run.path.name)}", f"runs_dir={json_text(str(run.path.parent))}"]
    # -P: without it, a file such as random.py in the current folder would be imported in place of a library.
    command = [sys.executable, "-P", "-m", "grouprl", verb, *(["--resume"] if resume else []), "--"]
    with os.fdopen(open_to_write(log, os.O_WRONLY | os.O_APPEND), "ab") as printed:
        return subprocess.Popen(
            [*command, *settings, *directory],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Interrupted(KeyboardInterrupt):
    """The user asked to stop during work that is not recorded yet and that a resume repeats."""


class StopRequest:
    """Whether the user asked the run to stop."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.asked = False
        self._at_once = False
        self._ranks: Ranks | None = None  # of interruptible work
        self._announce = announce

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal; the first sets `asked` and ends interruptible work, the second stops at once."""
        if self.asked:
            self._at_once = True
            raise KeyboardInterrupt
        self.asked = True
        now = self._ranks is not None
        what = "now: --resume repeats this evaluation." if now else "after this step is saved."
        self._announce(f"Stopping {what} Press Ctrl-C again to stop {'at once' if now else 'now'}.")
        self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt as `handle` does: Python drops an exception that meets a finalizer."""
        if self._at_once:
            raise KeyboardInterrupt
        if self.asked and self._ranks is not None and not self._ranks.meets:
            raise Interrupted

    @contextmanager
    def interruptible(self, ranks: Ranks) -> Iterator[None]:
        """Raises `Interrupted` in the block as soon as the user asks to stop, and at once if that was before.

        Every rank raises it when one does. The operations of all ranks in the block are those of `Ranks.gather`.
        """
        self._ranks = ranks
        try:
            self.check()
            yield
            self._ranks = None
            ranks.gather(None, "end")  # after it no rank leaves
        except LeftError:
            raise Interrupted from None
        except Interrupted:
            ranks.leave()
            raise
        finally:
            self._ranks = None


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
