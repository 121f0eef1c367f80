"""The interpreter that runs inside: this process's own Python with its standard library, without installed packages."""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path

PREFIX = Path(sys.base_prefix).resolve()
EXECUTABLE = Path(getattr(sys, "_base_executable", sys.executable)).resolve()

FLAGS = ("-s", "-S", "-P", "-B")  # no site-packages, nothing from the working directory, no byte code written
# A fixed hash seed gives sets of strings the same order in every run: a reward must not depend on chance.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class Launch:
    """The command that starts a sandbox, and its surroundings."""

    command: tuple[str, ...]
    environment: dict[str, str]
    # Inherited in addition to the standard three. A folder among them would be a way out of a new root: "fd/../../etc".
    descriptors: tuple[int, ...]
    user: int | None  # user to become before anything else; None = no change
    others: int = 0  # most tasks outside the sandbox that the kernel's limit on the user's tasks also counts


@dataclass(frozen=True)
class Channels:
    """Open file descriptors for the guest."""

    result: int  # the guest writes its reports here
    seccomp: int  # the guest reads the filter from here
    home: int  # the folder of the interpreter


def user() -> int | None:
    """The user that root becomes, because limits on processes do not bind root; None for an ordinary user.

    Each process that runs sandboxes gets a user of its own from the range that systemd reserves for dynamic users.
    """
    return 61184 + os.getpid() % 4336 if os.geteuid() == 0 else None


def text_of(name: str) -> str:
    """The text of a file of this package that runs inside."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def above_standard(descriptor: int) -> int:
    """Duplicates a descriptor to a number from 10 on, and closes the old one.

    A process whose standard input is closed gets 0 for the next file that it opens, and the guest has its own 0 to 2.
    """
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(descriptor)
