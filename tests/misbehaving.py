"""Reward functions that do what reward functions must never do. Imported by worker processes: keep it light."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

held: list[bytes] = []


def misbehaves(completions: list[str], **columns: Any) -> Any:
    """1.0 for each completion, unless its text names something else to do."""
    values: list[Any] = []
    for text in completions:
        values += DEEDS.get(text, lambda: [1.0])()
    return values


def _raise() -> Any:
    raise ZeroDivisionError("division by zero")


def _leave() -> Any:
    sys.exit("leaving")


def _hold_the_interpreter() -> Any:
    return [bool(re.match(r"(a+)+$", "a" * 40 + "b"))]  # in C, for hours, without releasing the lock


def _burn() -> Any:
    while True:
        pass


def _memory() -> Any:
    return [len(bytearray(8 << 30))]


def _leak() -> Any:
    held.append(os.urandom(1 << 20) * 40)
    return [1.0]


def _child_that_stays() -> Any:
    subprocess.Popen(["sleep", "987654"], start_new_session=True)
    time.sleep(3600)


def _threads_that_hang() -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()


DEEDS = {
    "raise": _raise,
    "leave": _leave,
    "sleep": lambda: time.sleep(3600) or [1.0],
    "hold the interpreter": _hold_the_interpreter,
    "burn": _burn,
    "ignore signals": _threads_that_hang,
    "segmentation fault": lambda: [ctypes.string_at(0)],
    "abort": lambda: os.abort(),
    "exit": lambda: os._exit(3),
    "exit with 0": lambda: os._exit(0),
    "kill itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "memory": _memory,
    "leak": _leak,
    "child that stays": _child_that_stays,
    "recursion": lambda: eval("[" * 5000) or [1.0],
    "none": lambda: [None],
    "nan": lambda: [float("nan")],
    "infinity": lambda: [float("inf")],
    "text": lambda: ["1"],
    "list": lambda: [[1.0]],
    "two values": lambda: [1.0, 1.0],
    "no value": list,
}
