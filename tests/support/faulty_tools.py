"""Tools that fail in every way that is known, for the tests of environments."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

# Seconds that a child sleeps: it shows in the list of processes, which other runs of the tests share.
STAYING = os.environ.setdefault("STAYING_SECONDS", f"61.{os.getpid()}")


class _Rude(BaseException):
    pass


class _Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class _Text(str):
    def __str__(self) -> str:
        return "a lie"


class _Unprintable:
    def __repr__(self) -> str:
        raise OSError("cannot be shown")


class _SlowToPrint:
    def __repr__(self) -> str:
        time.sleep(60)
        return ""


def _channels() -> list[int]:
    """The sockets of this process, among them that to the run."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(int(name))
    return found


def _send_all(data: bytes) -> str:
    for fd in _channels():
        with contextlib.suppress(OSError):
            os.write(fd, data)
    return "written"


def _frame(reply: object) -> bytes:
    text = json.dumps(reply).encode()
    return struct.pack("<Q", len(text)) + text


def _raise(error: BaseException) -> str:
    raise error


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _circle() -> list[Any]:
    found: list[Any] = [1]
    found.append(found)
    return found


def _spin() -> str:
    while True:
        pass


def _deadlock() -> str:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    return ""


def _bomb() -> str:
    while True:
        os.fork()


def _orphans() -> str:
    while True:
        if os.fork() == 0:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(60)


def _threads() -> str:
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def _forks_once() -> str:
    return f"child {os.fork() == 0}"


def _recurse() -> str:
    return _recurse()


def _fill() -> str:
    held = []
    while True:
        held.append(bytearray(16 << 20))


def _close_all() -> str:
    os.closerange(0, 256)
    return "closed"


def _replace_json() -> str:
    json.dumps = json.loads = None  # type: ignore[assignment]
    return "replaced"


def _leave_thread() -> str:
    threading.Thread(target=time.sleep, args=(60,)).start()
    return "left"


def _late_thread() -> str:
    def later() -> None:
        time.sleep(0.1)
        _send_all(_frame({"request": 2, "place": 0, "text": "forged"}))

    threading.Thread(target=later, daemon=True).start()
    return "soon"


def _late_hang() -> str:
    def later() -> None:
        time.sleep(2.1)
        _send_all(_frame({"request": 1, "place": 0, "text": "late"}))

    threading.Thread(target=later, daemon=True).start()
    time.sleep(60)
    return "late"


def _leave_child() -> str:
    subprocess.Popen(["sleep", STAYING])
    return "left"


def _leave_daemon() -> str:
    subprocess.run(["sh", "-c", f"setsid sleep {STAYING} >/dev/null 2>&1 &"], check=True)
    return "left"


def _ignore_signals() -> str:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)
    return ""


def _close_loop() -> str:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.close()
    return "closed"


def _break_builtins() -> str:
    builtins.len = builtins.isinstance = None  # type: ignore[assignment]
    return "broken"


def _print_much() -> str:
    for _ in range(2000):
        print("x" * 1000)
    os.write(1, b"\xff\x00\x80" * 1000)
    return "printed"


def _close_stdout() -> str:
    os.close(1)
    sys.stdout.close()
    return "closed"


def _kill_parent() -> str:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
    return ""


def _generate() -> Iterator[int]:
    yield 1


async def _soon() -> str:
    await asyncio.sleep(0)
    return "awaited"


WAYS: dict[str, Callable[[], Any]] = {
    "fine": lambda: "fine",
    "hang": lambda: time.sleep(60),
    "spin": _spin,
    "deadlock": _deadlock,
    "stop itself": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "ignore signals": _ignore_signals,
    "hang in a child": lambda: subprocess.run(["sleep", STAYING], check=True),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "os._exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(3),
    "rude": lambda: _raise(_Rude("rude")),
    "generator exit": lambda: _raise(GeneratorExit()),
    "mute": lambda: _raise(_Mute()),
    "long error": lambda: _raise(ValueError("y" * 10_000_000)),
    "error": lambda: _raise(ValueError("Game over.")),
    "import": lambda: __import__("no_such_module"),
    "recursion": _recurse,
    "memory": lambda: len(bytearray(4 << 30)),
    "fill": _fill,
    "bomb": _bomb,
    "orphans": _orphans,
    "threads": _threads,
    "fork once": _forks_once,
    "10 MB": lambda: "x" * 10_485_760,
    "huge JSON": lambda: {f"key {n}": [n] * 20 for n in range(5_000)},
    "nan": lambda: float("nan"),
    "none": lambda: None,
    "bytes": lambda: b"\xff\x00",
    "generator": _generate,
    "coroutine": _soon,
    "itself": lambda: WAYS["itself"],
    "circle": _circle,
    "deep": lambda: _nested(1, 100_000),
    "huge number": lambda: 10**5000,
    "unicode": lambda: "héllo \U0001f600 \u202e\u05d0",
    "lone surrogate": lambda: "a\ud800b",
    "surrogate in JSON": lambda: ["\udfff"],
    "control characters": lambda: "\x00\x1b[2J",
    "text that lies": lambda: _Text("the truth"),
    "unprintable": _Unprintable,
    "slow to print": _SlowToPrint,
    "image": lambda: [{"type": "image", "image": b""}],
    "text block": lambda: [{"type": "text", "text": "seen"}],
    "write bytes": lambda: _send_all(b"\xff" * 64),
    "write a long frame": lambda: _send_all(struct.pack("<Q", 1 << 40)),
    "write a list": lambda: _send_all(_frame([1])),
    "write nan": lambda: _send_all(_frame({"request": 1, "place": 0, "text": "", "reward": float("nan")})),
    "write another place": lambda: _send_all(_frame({"request": 1, "place": 9, "text": ""})),
    "write another request": lambda: _send_all(_frame({"request": 9, "place": 0, "text": ""})),
    "write deep JSON": lambda: _send_all(struct.pack("<Q", 200_000) + b"[" * 200_000),
    "close all": _close_all,
    "replace json": _replace_json,
    "leave a thread": _leave_thread,
    "late thread": _late_thread,
    "late hang": _late_hang,
    "leave a child": _leave_child,
    "leave a daemon": _leave_daemon,
    "close its loop": _close_loop,
    "break builtins": _break_builtins,
    "print much": _print_much,
    "close stdout": _close_stdout,
    "kill its parent": _kill_parent,
}


def act(way: str, times: int = 1) -> Any:
    """Fails in a way.

    Args:
        way: The way.
        times: Is not used.
    """
    return WAYS[way]()


async def act_later(way: str) -> Any:
    """Fails in a way, in a coroutine.

    Args:
        way: The way.
    """
    await asyncio.sleep(0.01)
    if way == "hang":
        await asyncio.sleep(60)
    found = WAYS[way]()
    return await found if isinstance(found, Coroutine) else found


class Faulty:
    """An environment with state, each of whose methods may fail."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self, way: str = "fine", **row: Any) -> Any:
        self._reward = row.get("reward", "fine")
        return WAYS[way]()

    def count_and(self, way: str) -> Any:
        """Counts, and then fails in a way.

        Args:
            way: The way.
        """
        self.count += 1
        return f"{self.count}: {WAYS[way]()}" if way == "fine" else WAYS[way]()

    async def later(self, way: str) -> Any:
        """Fails in a way, in a coroutine.

        Args:
            way: The way.
        """
        return await act_later(way)

    def get_reward(self) -> Any:
        return WAYS[self._reward]()
