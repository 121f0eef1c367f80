"""Processes of a test: a mark in their environment tells them from those of other tests, which run at the same time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

MARK = "GROUPRL_TEST"
_NUMBERS = count()


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def marked(mark: str) -> dict[int, str]:
    """Living processes that were started with this mark, and their children: id and command."""
    parents, own, commands = dict[int, int](), set[int](), dict[int, str]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state not in "ZX":
            parents[int(entry.name)], commands[int(entry.name)] = int(parent), command
            own |= {int(entry.name)} if f"{MARK}={mark}".encode() in environment else set()
    # Some processes of Ray write their title over their environment.
    return {pid: command for pid, command in commands.items() if {pid, parents[pid]} & own}


@contextmanager
def nothing_left(seconds: float = 15.0) -> Iterator[Callable[[], dict[int, str]]]:
    """Marks what the block starts, yields `marked` for it, and checks that all of it ends soon after the block."""
    before, mark = os.environ.get(MARK), f"{os.getpid()}-{next(_NUMBERS)}"
    os.environ[MARK] = mark
    try:
        yield partial(marked, mark)
    finally:
        os.environ.pop(MARK) if before is None else os.environ.update({MARK: before})
    until = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:  # else they would disturb the tests that follow
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == {}
