"""Processes that begin with what this one has imported: the imports of a new one take seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from typing import TextIO
from unittest.mock import patch

from grouprl.cli import main


@dataclass(frozen=True)
class Forked:
    """A process that runs, and what it writes."""

    process: ForkProcess
    out: TextIO
    err: TextIO

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit status, negative for a signal."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"it still runs after {timeout:g} s"
        return self.process.exitcode


def _in_child(what: Callable[[], object], out: int, err: int) -> None:
    for place, channel in ((1, out), (2, err)):
        os.dup2(channel, place)
        os.close(channel)
    with open(1, "w", buffering=1, closefd=False) as sys.stdout, open(2, "w", buffering=1, closefd=False) as sys.stderr:
        what()


@contextmanager
def forked(what: Callable[[], object]) -> Iterator[Forked]:
    """A copy of this process that does `what` and ends as the interpreter does."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_in_child, args=(what, out_end, err_end))
    process.start()
    os.close(out_end)
    os.close(err_end)
    with open(out) as said, open(err) as complained:
        try:
            yield Forked(process, said, complained)
        finally:
            process.kill()
            process.join()


def command(*arguments: object) -> Callable[[], None]:
    """`grouprl ARGUMENTS`, for `forked`."""

    def run() -> None:
        with patch.object(sys, "argv", ["grouprl", *map(str, arguments)]):
            main()

    return run
