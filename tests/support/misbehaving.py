"""Reward functions that do what reward functions must never do. Imported by worker processes: keep it light."""

import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

from grouprl.rewards.calls import Invalid

held: list[bytes] = []
STAYING = os.environ.setdefault("STAYING", f"98{os.getpid()}")  # seconds; the mark of what this run's workers start


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
    subprocess.Popen(["sleep", STAYING], start_new_session=True)
    time.sleep(3600)


def _threads_that_hang() -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("mute")


def _raise_mute() -> Any:
    raise MuteError


def _raise_odd_letters() -> Any:
    raise ValueError("bad \ud800 \u202e char")


def _channel() -> int:
    """The descriptor of the worker's only socket."""
    for name in sorted(os.listdir("/proc/self/fd"), key=int, reverse=True):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                return int(name)
        except OSError:
            continue
    raise OSError("no socket")


def _fake_answer() -> Any:
    body = b"null"
    os.write(_channel(), len(body).to_bytes(8, "little") + body)
    time.sleep(3600)


def _half_an_answer() -> Any:
    os.write(_channel(), b"ab")
    time.sleep(3600)


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
    "kill itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "memory": _memory,
    "leak": _leak,
    "child that stays": _child_that_stays,
    "huge": lambda: [1e31],
    "real-time signal": lambda: os.kill(os.getpid(), 40),
    "fake answer": _fake_answer,
    "half an answer": _half_an_answer,
    "wrong class": lambda: [Invalid(ValueError("not a text"))],  # type: ignore[arg-type]
    "mute error": _raise_mute,
    "odd letters": _raise_odd_letters,
}


def moody(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[Any]:
    """The length of a text, unless its token ids add up to something else."""
    values: list[Any] = []
    for text, ids in zip(completions, completion_ids, strict=True):
        mood = sum(ids) % 17
        if mood == 0:
            raise ValueError("not today")
        if mood == 1:
            time.sleep(60)
        if mood == 2:
            os._exit(7)
        values.append({3: math.nan, 4: Invalid("cannot read this")}.get(mood, float(len(text))))
    return values
