"""Which backend this machine can use: found out by running a program in it that tries to get out."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path

from grouprl.rewards.sandbox.interpreter import user
from grouprl.rewards.sandbox.running import LAUNCHERS, run_with
from grouprl.rewards.sandbox.values import Failed, Limits, Returned, SandboxError
from grouprl.types import UserError

_CAP_KILL = 5
_REMEDY = (
    "run as an ordinary user, install bubblewrap (apt install bubblewrap) and allow user namespaces, or use Linux 6.2 "
    "or newer with Landlock; model-written code is never run without one of them"
)
# Each of these has to fail in a sandbox that works; reading a file of the standard library has to succeed.
_PROBE = """
import os
def refused(act):
    try:
        act()
    except OSError:
        return True
    return False
def probe(path):
    import _socket
    library = os.path.dirname(os.__file__)
    return [
        os.getuid() != 0,
        "heapq.py" in os.listdir(library),
        refused(lambda: open(path)),
        refused(lambda: os.listdir(os.path.dirname(path))),
        refused(lambda: open(os.__file__, "a")),
        refused(lambda: _socket.socket()),
        refused(os.fork),
    ]
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
    if user() is not None and not _may_end_others():
        return "root may not end processes of the user it becomes here (CAP_KILL)"
    try:
        result = run_with(name, _PROBE, [f"probe({str(Path(__file__))!r})"], "", Limits(seconds=30.0))
    except SandboxError as error:
        return str(error)
    found = result.outcomes[0]
    if isinstance(found, Failed):
        return f"a first program failed: {found.reason}"
    return None if found == Returned([True] * 7) else f"a first program was not locked in: {found.value}"


def _may_end_others() -> bool:
    """Whether this process has CAP_KILL, without which root could start sandboxes and never end them."""
    [capabilities] = re.findall(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(int(capabilities, 16) >> _CAP_KILL & 1)
