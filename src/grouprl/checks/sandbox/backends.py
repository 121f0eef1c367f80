"""The two backends: each makes the command that starts a confined interpreter, this process's own Python."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from subprocess import PIPE

from grouprl.checks.sandbox.values import Limits, SandboxError
from grouprl.checks.sandbox.visible_files import (
    EXECUTABLE,
    PACKAGES,
    PREFIX,
    STDLIB,
    libraries,
    library_path,
    loader,
    place,
    readable,
)

FLAGS = ("-s", "-S", "-P", "-B")  # no site-packages, nothing from the working directory, no byte code written
# A fixed hash seed gives sets of strings the same order in every run: a reward must not depend on chance.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
_STAGE = "/mnt"  # exists on every system
_INSIDE = "/python"
# Commands that root runs must not see the user's environment.
_BARE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_FUTURE = "from __future__ import annotations\n"


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


def bubblewrap(channels: Channels, limits: Limits) -> Launch:
    """The first backend: bubblewrap (`bwrap` 0.8 or newer), which gives the program a small system of its own.

    Every namespace is new. The program sees no network, no other process, and no files but the standard library and its
    shared libraries, all read-only, and a small folder in memory. The user inside has no capabilities and can make no
    further user namespace. Raises SandboxError when it needs a command that is not installed.
    """
    bwrap, becomes = _program("bwrap", "apt install bubblewrap"), user()
    prefix = str(PREFIX) if becomes is None else _STAGE
    binds = [(place(path, prefix), place(path, _INSIDE)) for path in (STDLIB, *libraries())]
    binds += [(os.path.realpath(loader()), loader()), (place(EXECUTABLE, prefix), f"{_INSIDE}/bin/python")]
    hidden = [place(STDLIB / name, _INSIDE) for name in PACKAGES if (STDLIB / name).is_dir()]
    environment = ENVIRONMENT | {"LD_LIBRARY_PATH": library_path(_INSIDE)}
    tmp = ("--size", str(limits.files_mib << 20), "--tmpfs", "/tmp")
    guest = ("-c", f"{text_of('guest.py')}\nmain({channels.result})")
    sandbox = (
        *(bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        # With the program as process 1, bubblewrap reaps it before ending itself, so no process is left over.
        *("--as-pid-1", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *(word for source, target in binds for word in ("--ro-bind", source, target)),
        *(word for folder in hidden for word in ("--tmpfs", folder, "--remount-ro", folder)),
        # The folders that bubblewrap makes for mount points are also in memory, but without a size limit.
        *("--dev", "/dev", *tmp, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
        *("--seccomp", str(channels.seccomp), "--", f"{_INSIDE}/bin/python", *FLAGS, *guest),
    )
    front: tuple[str, ...] = ()
    if becomes is not None:
        # Root becomes another user, then executes bubblewrap in its place: a parent process of root between the two
        # could not make bubblewrap die with it.
        nsenter, stage = _program("nsenter", "apt install util-linux"), _stage(os.getpid())
        mount = f"--mount=/proc/{os.getpid()}/fd/{stage}"
        front = (nsenter, mount, "--setuid", str(becomes), "--setgid", str(becomes), "--")
    return Launch((*front, *sandbox), {}, (channels.result, channels.seccomp), None)


@lru_cache(maxsize=1)
def _stage(pid: int) -> int:
    """A mount namespace in which others can read root's own interpreter; it lives as long as process `pid`.

    Raises SandboxError when this root may not mount anything.
    """
    unshare, sh, mount = (_program(name, "apt install util-linux") for name in ("unshare", "sh", "mount"))
    show = f'"$0" --bind "$1" {_STAGE} && echo ready && read -r end'
    command = (unshare, "--mount", "--propagation", "private", "--", sh, "-c", show, mount, str(PREFIX))
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd="/", env=_BARE) as process:
        line = process.stdout.readline() if process.stdout else b""
        if line != b"ready\n":
            process.kill()
            _, stderr = process.communicate(timeout=5)
            raise SandboxError(f"root may not mount {PREFIX} for the user it becomes: {stderr.decode().strip()}")
        return above_standard(os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))


def _program(name: str, remedy: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SandboxError(f"{name} is not installed ({remedy})")
    return os.path.abspath(path)  # the sandbox starts in "/", where a relative path would not be found


def landlock(channels: Channels, limits: Limits) -> Launch:
    """The second backend: Landlock, seccomp and limits, which need only the standard library and Linux 6.2 or newer.

    An interpreter confines itself. The program can read the standard library and a few devices, can write no file (so
    `files_mib` is unused), and is a single process. Unlike in bubblewrap it can find out whether a file of a known name
    exists.
    """
    # Through its descriptor the prefix is readable even where root keeps it in a folder closed to all others.
    prefix = f"/proc/self/fd/{channels.home}"
    files, folders = ([place(path, prefix) for path in paths] for paths in readable())
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


def _tasks() -> int:
    """The number of tasks on this machine, an upper bound of the tasks of an ordinary user, which the kernel counts.

    Counting only the user's own tasks would need a walk through all processes.
    """
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
