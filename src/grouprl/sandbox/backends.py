"""Finds the backend that this machine can use by running a program in it that tries to get out."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from pathlib import Path

from grouprl.sandbox.interpreter import user
from grouprl.sandbox.runner import LAUNCHERS, run_with
from grouprl.sandbox.values import CallFailure, Limits, ReturnValue, SandboxError
from grouprl.sandbox.visible_files import STDLIB
from grouprl.types import UserError

_CAP_KILL = 5
_REMEDY = (
    "run as an ordinary user, install bubblewrap (apt install bubblewrap) and allow user namespaces, or use Linux 6.2 "
    "or newer with Landlock; model-written code is never run without one of them"
)
# Returns the checks that fail. Reading a file of the standard library must work; everything else must be refused.
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
    """The strongest backend that works here: `bubblewrap`, else `landlock`. The first call tries them, and is cached.

    Raises UserError with a reason for each backend when none works.
    """
    reasons = []
    for name in LAUNCHERS:
        why_not = why_unavailable(name)
        if why_not is None:
            return name
        reasons.append(f"{name}: {why_not}")
    raise UserError(
        f"sandbox: expected a backend that confines model-written code, got none ({'; '.join(reasons)}): {_REMEDY}"
    )


@lru_cache(maxsize=len(LAUNCHERS))
def why_unavailable(name: str) -> str | None:
    """The reason why a backend cannot be used here; None = it works. The first call runs a program in it."""
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
        return f"a file that it needs, such as /proc, is missing: {error}"
    if isinstance(found, CallFailure):
        return f"a test program failed: {found.reason}"
    return None if found == ReturnValue([]) else f"a test program was not confined, it {', '.join(found.value)}"


def _may_end_others() -> bool:
    """Whether this process has CAP_KILL; without it root could start sandboxes but never end them."""
    [capabilities] = re.findall(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(int(capabilities, 16) >> _CAP_KILL & 1)
