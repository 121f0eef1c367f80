"""The interpreter that runs inside: this process's own Python, its standard library, and nothing that was installed."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

PREFIX = Path(sys.base_prefix).resolve()
EXECUTABLE = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
LIBRARIES = tuple(sorted({"lib", sys.platlibdir}))
"""Folders of the prefix that hold the standard library and the interpreter's own shared objects."""

SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
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


def inside_executable(prefix: str) -> str:
    """Where the interpreter lies when its prefix is seen at `prefix`."""
    return f"{prefix}/{EXECUTABLE.relative_to(PREFIX)}" if EXECUTABLE.is_relative_to(PREFIX) else str(EXECUTABLE)


def library_folder() -> str:
    """Where libpython lies, relative to the prefix."""
    folder = Path(sysconfig.get_config_var("LIBDIR") or "lib")
    return str(folder.relative_to(PREFIX)) if folder.is_relative_to(PREFIX) else "lib"
