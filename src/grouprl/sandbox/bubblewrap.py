"""The first backend: bubblewrap (`bwrap` 0.8 or newer), which gives the program a small system of its own.

Every namespace is new. The program sees no network, no other process, and no files but the standard library and its
shared libraries, all read-only, and a small folder in memory. The user inside has no capabilities and can make no
further user namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from subprocess import PIPE

from grouprl.sandbox.interpreter import (
    ENVIRONMENT,
    EXECUTABLE,
    FLAGS,
    PREFIX,
    Channels,
    Launch,
    above_standard,
    text_of,
    user,
)
from grouprl.sandbox.values import Limits, SandboxError
from grouprl.sandbox.visible_files import STDLIB, libraries, library_path, loader, packages, place

_STAGE = "/mnt"  # exists on every system
_INSIDE = "/python"
# Commands that root runs must not see the user's environment.
_BARE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def launch(channels: Channels, limits: Limits) -> Launch:
    """The command that starts the sandbox. Raises SandboxError when it needs a command that is not installed."""
    bwrap, becomes = _found("bwrap", "apt install bubblewrap"), user()
    prefix = str(PREFIX) if becomes is None else _STAGE
    binds = [(place(path, prefix), place(path, _INSIDE)) for path in (STDLIB, *libraries())]
    binds += [(os.path.realpath(loader()), loader()), (place(EXECUTABLE, prefix), f"{_INSIDE}/bin/python")]
    hidden = [place(folder, _INSIDE) for folder in packages()]
    environment = ENVIRONMENT | {"LD_LIBRARY_PATH": library_path(_INSIDE)}
    sandbox = (
        *(bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        # With the program as process 1, bubblewrap reaps it before ending itself, so no process is left over.
        *("--as-pid-1", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *(word for source, target in binds for word in ("--ro-bind", source, target)),
        *(word for folder in hidden for word in ("--tmpfs", folder, "--remount-ro", folder)),
        *("--dev", "/dev", "--size", str(limits.files_mib << 20), "--tmpfs", "/tmp"),
        # The folders that bubblewrap makes for mount points are also in memory, but without a size limit.
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(channels.seccomp)),
        *("--", f"{_INSIDE}/bin/python", *FLAGS, "-c", f"{text_of('guest.py')}\nmain({channels.result})"),
    )
    front = () if becomes is None else _as_user(becomes)
    return Launch((*front, *sandbox), {}, (channels.result, channels.seccomp), None)


def _as_user(becomes: int) -> tuple[str, ...]:
    """The command that root puts before bubblewrap: it becomes another user, then executes bubblewrap in its place.

    A parent process of root between the two could not make bubblewrap die with it.
    """
    nsenter, stage = _found("nsenter", "apt install util-linux"), f"/proc/{os.getpid()}/fd/{_stage(os.getpid())}"
    return (nsenter, f"--mount={stage}", "--setuid", str(becomes), "--setgid", str(becomes), "--")


@lru_cache(maxsize=1)
def _stage(pid: int) -> int:
    """A mount namespace in which others can read root's own interpreter; it lives as long as process `pid`.

    Raises SandboxError when this root may not mount anything.
    """
    unshare, sh, mount = (_found(name, "apt install util-linux") for name in ("unshare", "sh", "mount"))
    show = f'"$0" --bind "$1" {_STAGE} && echo ready && read -r end'
    command = (unshare, "--mount", "--propagation", "private", "--", sh, "-c", show, mount, str(PREFIX))
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd="/", env=_BARE) as process:
        line = process.stdout.readline() if process.stdout else b""
        if line != b"ready\n":
            _, stderr = process.communicate()
            raise SandboxError(f"root may not mount {PREFIX} for the user it becomes: {stderr.decode().strip()}")
        return above_standard(os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))


def _found(program: str, remedy: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise SandboxError(f"{program} is not installed ({remedy})")
    return os.path.abspath(path)  # the sandbox starts in "/", where a relative path would not be found
