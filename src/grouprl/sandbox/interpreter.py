"""The interpreter that runs inside: this process's own Python, its standard library, and nothing that was installed."""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path

PREFIX = Path(sys.base_prefix).resolve()
EXECUTABLE = Path(getattr(sys, "_base_executable", sys.executable)).resolve()

FLAGS = ("-s", "-S", "-P", "-B")  # no site-packages, nothing from the working directory, no byte code written
# Sets of strings come in the same order in every run: a reward must not depend on chance.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class Launch:
    """How a sandbox is started."""

    command: tuple[str, ...]
    environment: dict[str, str]
    # What it inherits besides the standard three. A folder among them would be a way out of a new root: "fd/../../etc".
    descriptors: tuple[int, ...]
    user: int | None  # whom to become before anything else; None = stay
    others: int = 0  # tasks, at most, that the kernel's limit on the user's tasks counts besides those inside


@dataclass(frozen=True)
class Channels:
    """Open file descriptors that the inside is handed."""

    result: int  # what it reports goes there
    seccomp: int  # the filter is read from here
    home: int  # the folder of the interpreter


def user() -> int | None:
    """Who root becomes, None for anybody else: limits on processes do nothing for root.

    Each process that runs sandboxes has a user of its own, of those that systemd reserves for passing ones.
    """
    return 61184 + os.getpid() % 4336 if os.geteuid() == 0 else None


def text_of(name: str) -> str:
    """The text of a file of this package that is to run inside."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def above_standard(descriptor: int) -> int:
    """The same file under a number from 10 on; closes the old one.

    A process whose standard input was closed gets 0 for the next file that it opens, and the inside has its own 0 to 2.
    """
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(descriptor)
