"""Which backend this machine can use: found out by running a program in it that tries to get out."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from pathlib import Path

from grouprl.sandbox.interpreter import user
from grouprl.sandbox.running import LAUNCHERS, run_with
from grouprl.sandbox.shown import STDLIB
from grouprl.sandbox.values import Failed, Limits, Returned, SandboxError
from grouprl.types import UserError

_CAP_KILL = 5
_REMEDY = (
    "run as an ordinary user, install bubblewrap (apt install bubblewrap) and allow user namespaces, or use Linux 6.2 "
    "or newer with Landlock; model-written code is never run without one of them"
)
# Tells what is wrong. Nothing may be: reading a file of the standard library has to succeed, all else has to fail.
_PROBE = """
import os
def refused(act):
    try:
        act()
    except OSError:
        return True
    return False
def empty(folder):
    try:
        return not os.listdir(folder)
    except OSError:
        return True
def probe(path, here):
    import _socket
    library = os.path.dirname(os.__file__)
    beside = [library, library + "/../python3"]
    safe = {
        "is root": os.getuid() != 0,
        "has no standard library": not refused(lambda: open(library + "/heapq.py")),
        "sees installed packages": all(empty(f"{f}/{name}-packages") for f in beside for name in ("site", "dist")),
        "reads files": refused(lambda: open(path)) and refused(lambda: open(f"{library}/{here}")),
        "lists folders": refused(lambda: os.listdir(os.path.dirname(path))),
        "writes to the standard library": refused(lambda: open(os.__file__, "a")),
        "opens sockets": refused(lambda: _socket.socket()),
        "starts processes": refused(os.fork),
    }
    return [name for name in safe if not safe[name]]
"""


@lru_cache(maxsize=1)
def choose_backend() -> str:
    """The strongest backend that works here: `bubblewrap`, else `landlock`. Tried out once, then remembered.

    Raises UserError, with a reason for each, when none does.
    """
    reasons = []
    for name in LAUNCHERS:
        why_not = why_unavailable(name)
        if why_not is None:
            return name
        reasons.append(f"{name}: {why_not}")
    raise UserError(
        f"sandbox: expected a way to lock model-written code in, got none ({'; '.join(reasons)}): {_REMEDY}"
    )


@lru_cache(maxsize=len(LAUNCHERS))
def why_unavailable(name: str) -> str | None:
    """Why a backend cannot be used here; None = it can. Runs a program in it on the first call."""
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    path = Path(__file__).resolve()
    probe = f"probe({str(path)!r}, {os.path.relpath(path, STDLIB)!r})"
    try:
        if user() is not None and not _may_end_others():
            return "root may not end processes of the user it becomes here (CAP_KILL)"
        [found] = run_with(name, _PROBE, [probe], "", Limits(seconds=30.0)).outcomes
    except SandboxError as error:
        return str(error)
    except OSError as error:
        return f"something that it needs is missing, such as /proc: {error}"
    if isinstance(found, Failed):
        return f"a first program failed: {found.reason}"
    return None if found == Returned([]) else f"a first program was not locked in, it {', '.join(found.value)}"


def _may_end_others() -> bool:
    """Whether this process has CAP_KILL, without which root could start sandboxes and never end them."""
    [capabilities] = re.findall(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(int(capabilities, 16) >> _CAP_KILL & 1)
