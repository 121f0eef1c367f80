"""Runs one program in a fresh sandbox, and ends it.

A backend is used only after a program in it has tried to get out.
"""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path

from grouprl.checks.sandbox.backends import Channels, Launch, above_standard, bubblewrap, landlock, user
from grouprl.checks.sandbox.seccomp import filter_program
from grouprl.checks.sandbox.values import (
    PREPARED,
    READY,
    STARTED,
    CallFailure,
    Limits,
    ReturnValue,
    SandboxError,
    SandboxResult,
    outcome,
)
from grouprl.checks.sandbox.visible_files import PREFIX, STDLIB
from grouprl.types import UserError

LAUNCHERS: Mapping[str, Callable[[Channels, Limits], Launch]] = {"bubblewrap": bubblewrap, "landlock": landlock}
BACKENDS = tuple(LAUNCHERS)
"""Names of the backends; the stronger one comes first."""

_CHUNK = 1 << 16
_GRACE_SECONDS = 0.2
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


def run_in_sandbox(
    source: str,
    calls: Sequence[str] = (),
    *,
    setup: str = "",
    limits: Limits | None = None,
    backend: str | None = None,
) -> SandboxResult:
    """Runs a program in a fresh sandbox, evaluates calls in its namespace, and blocks until the sandbox has ended.

    The returned data is only a claim of the program: compare it outside, with values that were never inside.

    Args:
        source: the program, as a module's text. Its `__name__` is "program".
        calls: expressions, such as "add(2, 3)", evaluated one after another in one process.
        setup: trusted text that runs before the program in the same namespace.
        limits: the limits of this run; None = `Limits()`.
        backend: one of `BACKENDS`; None = `choose_backend()`.

    Returns:
        One outcome per call, in order. The failure of a program is a result, not an error.

    Raises:
        SandboxError: the sandbox itself failed, which says nothing about the program.
        ValueError: `setup` failed.
        UserError: no backend works on this machine.
    """
    backend = backend or choose_backend()
    started = time.monotonic()
    result, printed, ending = _run(backend, (setup, source, *calls), limits or Limits())
    lines = result.split(b"\n")[:-1]  # text after the last line end is an incomplete line
    output = printed.decode("utf-8", "replace")
    if lines[:1] != [READY]:
        raise SandboxError(f"{backend}: {ending}: {output.strip()[-300:]}")
    if lines[1:2] != [PREPARED]:
        if not setup:
            raise SandboxError(f"{backend}: reported that it was ready, then {ending}: {output.strip()[-300:]}")
        raise ValueError(f"expected a set-up that runs, got {ending}: {output.strip()[-300:]}")
    ran = lines[2:3] == [STARTED]
    outcomes = [outcome(line) for line in lines[3 : 3 + len(calls)]] if ran else []
    missing: list[ReturnValue | CallFailure] = [CallFailure(f"no result: {ending}")] * (len(calls) - len(outcomes))
    error = ending if missing or not ran else ""
    if not ran and lines[2:3] and isinstance(raised := outcome(lines[2]), CallFailure):
        error = raised.reason
    return SandboxResult((*outcomes, *missing), error, output, seconds=time.monotonic() - started)


@lru_cache(maxsize=1)
def choose_backend() -> str:
    """The strongest backend that works here: `bubblewrap`, else `landlock`. The first call tries them, and is cached.

    Raises UserError with a reason for each backend when none works.
    """
    reasons = []
    for name in BACKENDS:
        why_not = why_unavailable(name)
        if why_not is None:
            return name
        reasons.append(f"{name}: {why_not}")
    raise UserError(
        f"sandbox: expected a backend that confines model-written code, got none ({'; '.join(reasons)}): {_REMEDY}"
    )


@lru_cache(maxsize=len(BACKENDS))
def why_unavailable(name: str) -> str | None:
    """The reason why a backend cannot be used here; None = it works. The first call runs a program in it."""
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    path = Path(__file__).resolve()
    probe = f"probe({str(path)!r}, {os.path.relpath(path, STDLIB)!r})"
    try:
        if user() is not None:  # without CAP_KILL root could start sandboxes but never end them
            [capabilities] = re.findall(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
            if not int(capabilities, 16) >> _CAP_KILL & 1:
                return "root may not end processes of the user it becomes here (CAP_KILL)"
        [outcome] = run_in_sandbox(_PROBE, [probe], limits=Limits(seconds=30.0), backend=name).outcomes
    except SandboxError as error:
        return str(error)
    except OSError as error:
        return f"a file that it needs, such as /proc, is missing: {error}"
    if isinstance(outcome, CallFailure):
        return f"a test program failed: {outcome.reason}"
    return None if outcome == ReturnValue([]) else f"a test program was not confined, it {', '.join(outcome.value)}"


def _run(backend: str, texts: Sequence[str], limits: Limits) -> tuple[bytes, bytes, str]:
    """The reports of the guest, what the program printed, and why the sandbox wrote no more."""
    with ExitStack() as ours, ExitStack() as theirs:
        result, channel = _socket_pair(ours, theirs)
        output, printing = _socket_pair(ours, theirs)
        home = _close_with(theirs, os.open(PREFIX, os.O_PATH | os.O_CLOEXEC))
        seccomp = _close_with(theirs, _memory_file(filter_program()))
        launch = LAUNCHERS[backend](Channels(channel, seccomp, home), limits)
        # In the form that `guest.request` reads.
        contents = [text.encode("utf-8", "surrogatepass") for text in texts]
        tasks = limits.threads + 2 + launch.others
        numbers = (limits.cpu_seconds, limits.memory_mib << 20, limits.files_mib << 20, tasks, *map(len, contents))
        header = " ".join(map(str, numbers)).encode()
        request = _close_with(theirs, _memory_file(b"\n".join((header, b"".join(contents)))))
        try:
            process = subprocess.Popen(
                launch.command,
                env=launch.environment,
                stdin=request,
                stdout=printing,
                stderr=printing,
                pass_fds=launch.descriptors,
                cwd="/",
                start_new_session=True,
                user=launch.user,
                group=launch.user,
                extra_groups=None if launch.user is None else (),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"could not be started: {error}") from error
        try:
            theirs.close()
            deadline = time.monotonic() + limits.seconds
            most = limits.output_kib << 10
            written = {result: b"", output: b""}
            ending = ""
            with selectors.DefaultSelector() as selector:
                for descriptor in written:
                    selector.register(descriptor, selectors.EVENT_READ)
                while selector.get_map() and not ending:
                    ready = selector.select(max(0.0, deadline - time.monotonic()))
                    if not ready:
                        ending = f"took longer than {limits.seconds:g} s"
                    for key, _ in ready:
                        chunk = os.read(key.fd, _CHUNK)
                        written[key.fd] += chunk
                        if not chunk:
                            selector.unregister(key.fd)
                        elif len(written[key.fd]) > most:
                            ending = f"wrote more than {limits.output_kib} KiB"
            if not ending:  # it has closed its channels; a process that still runs can report nothing any more
                try:
                    status = process.wait(_GRACE_SECONDS)
                    is_killed = status in (-signal.SIGKILL, 128 + signal.SIGKILL)
                    ending = "was killed: CPU time or memory" if is_killed else f"ended its process (status {status})"
                except subprocess.TimeoutExpired:
                    ending = "closed its channels"
            return written[result], written[output][:most], ending
        finally:
            # Bubblewrap's child is killed first, so that bubblewrap can reap it.
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            if process.poll() is None and children.is_file():
                for child in children.read_text().split():
                    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                        os.kill(int(child), signal.SIGKILL)
                        process.wait(_GRACE_SECONDS)
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a process inside the kernel ends when it leaves it
                process.wait(_GRACE_SECONDS)


def _socket_pair(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """Sockets to read from and to write to. A program could reopen the read end of a pipe in /proc/self/fd."""
    reading, writing = socket.socketpair()
    return _close_with(ours, reading.detach()), _close_with(theirs, writing.detach())


def _close_with(stack: ExitStack, descriptor: int) -> int:
    """A number from 10 on for a descriptor, which the stack closes."""
    descriptor = above_standard(descriptor)
    stack.callback(os.close, descriptor)
    return descriptor


def _memory_file(content: bytes) -> int:
    """A nameless read-only file with this content, positioned at its start."""
    descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return descriptor
