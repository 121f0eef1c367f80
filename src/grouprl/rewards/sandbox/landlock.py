"""The second choice: Landlock, seccomp and limits, with nothing but the standard library and Linux 6.2 or newer.

The program sees the standard library and a few devices, can write nothing at all, and is a single process. Unlike in
bubblewrap it can ask whether a file of a known name exists.
"""

from __future__ import annotations

import os

from grouprl.rewards.sandbox.interpreter import (
    ENVIRONMENT,
    FLAGS,
    LIBRARIES,
    SYSTEM_LIBRARIES,
    Channels,
    Launch,
    inside_executable,
    library_folder,
    text_of,
    user,
)
from grouprl.rewards.sandbox.values import Limits

_FUTURE = "from __future__ import annotations\n"


def launch(channels: Channels, limits: Limits) -> Launch:
    """How to start an interpreter that locks itself in; there is no folder that `limits.files_mib` could be about."""
    # Through its descriptor the prefix can be read even where root keeps it in a folder closed to all others.
    prefix = f"/proc/self/fd/{channels.home}"
    readable = [*(f"{prefix}/{name}" for name in LIBRARIES), *SYSTEM_LIBRARIES]
    source = (
        _FUTURE,
        *(text_of(name).replace(_FUTURE, "") for name in ("confine.py", "inside.py")),
        f"confine({os.getpid()}, os.read({channels.seccomp}, 1 << 16), {readable!r})",
        f"os.close({channels.seccomp})",
        f"main({channels.result})",
    )
    libraries = {"PYTHONHOME": prefix, "LD_LIBRARY_PATH": f"{prefix}/{library_folder()}"}
    return Launch(
        (inside_executable(prefix), *FLAGS, "-c", "\n".join(source)),
        ENVIRONMENT | libraries,
        (channels.result, channels.seccomp, channels.home),
        user(),
    )
