"""The second backend: Landlock, seccomp and limits, which need only the standard library and Linux 6.2 or newer.

The program can read the standard library and a few devices, can write no file, and is a single process. Unlike in
bubblewrap it can find out whether a file of a known name exists.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from grouprl.sandbox.interpreter import ENVIRONMENT, EXECUTABLE, FLAGS, Channels, Launch, text_of, user
from grouprl.sandbox.values import Limits
from grouprl.sandbox.visible_files import libraries, library_path, place, standard_library

_FUTURE = "from __future__ import annotations\n"


def launch(channels: Channels, limits: Limits) -> Launch:
    """The command that starts an interpreter which confines itself; without writable files, `files_mib` is unused."""
    # Through its descriptor the prefix is readable even where root keeps it in a folder closed to all others.
    prefix = f"/proc/self/fd/{channels.home}"
    files, folders = ([place(path, prefix) for path in paths] for paths in _readable())
    source = (
        _FUTURE,
        *(text_of(name).replace(_FUTURE, "") for name in ("confinement.py", "guest.py")),
        f"confine({os.getpid()}, os.read({channels.seccomp}, 1 << 16), {files!r}, {folders!r})",
        f"os.close({channels.seccomp})",
        f"main({channels.result})",
    )
    environment = ENVIRONMENT | {"PYTHONHOME": prefix, "LD_LIBRARY_PATH": library_path(prefix)}
    becomes = user()
    return Launch(
        (place(EXECUTABLE, prefix), *FLAGS, "-c", "\n".join(source)),
        environment,
        (channels.result, channels.seccomp, channels.home),
        becomes,
        _tasks() if becomes is None else 0,
    )


@lru_cache(maxsize=1)
def _readable() -> tuple[list[Path], list[Path]]:
    """The readable files and folders; cached, because checking each of them takes a tenth of a program's time."""
    paths = (*standard_library(), *libraries())
    return [path for path in paths if not path.is_dir()], [path for path in paths if path.is_dir()]


def _tasks() -> int:
    """The number of tasks on this machine, an upper bound of the tasks of an ordinary user, which the kernel counts.

    Counting only the user's own tasks would need a walk through all processes.
    """
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
