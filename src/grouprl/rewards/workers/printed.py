"""Bounds what reward functions print: a worker passes on the first bytes of each call and drops the rest."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
import threading
import time
from contextlib import suppress

MOST = 16 << 10  # bytes of one call
_WAIT_SECONDS = 1.0  # longest wait for the last bytes of a call


class Printed:
    """The output of this process and its children: it goes through a pipe that a thread reads."""

    def __init__(self) -> None:
        self._out = os.dup(2)
        self._pipe, write = os.pipe()
        for stream in (1, 2):
            os.dup2(write, stream)
        os.close(write)
        self._left, self._said = MOST, False
        threading.Thread(target=self._pass_on, daemon=True).start()

    def begin_call(self) -> None:
        """A call starts: it may print as much as every other."""
        self._left = MOST

    def end_call(self) -> None:
        """Waits until what the call printed has been passed on: its worker may be killed at any time from now."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a function may have replaced or closed it
                stream.flush()
        until = time.monotonic() + _WAIT_SECONDS
        while struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)))[0] and time.monotonic() < until:
            time.sleep(0.0005)

    def _pass_on(self) -> None:
        with suppress(OSError):  # the terminal or the log is gone: the pipe is closed with the worker
            while data := os.read(self._pipe, 1 << 16):
                if shown := data[: max(0, self._left)]:
                    os.write(self._out, shown)
                self._left -= len(data)
                if self._left < 0 and not self._said:
                    self._said = True
                    os.write(self._out, b"\n[a reward printed over %d bytes in a call: the rest is dropped]\n" % MOST)
