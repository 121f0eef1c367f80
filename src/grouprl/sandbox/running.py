"""Runs one program in a fresh sandbox, and ends it."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from grouprl.sandbox import bubblewrap, landlock
from grouprl.sandbox.interpreter import PREFIX, Channels, Launch, above_standard
from grouprl.sandbox.seccomp import filter_program
from grouprl.sandbox.values import (
    PREPARED,
    READY,
    STARTED,
    Failed,
    Limits,
    Returned,
    SandboxError,
    SandboxResult,
    outcome,
)

LAUNCHERS: Mapping[str, Callable[[Channels, Limits], Launch]] = {
    "bubblewrap": bubblewrap.launch,
    "landlock": landlock.launch,
}
"""The backends by name, the stronger one first."""

_CHUNK = 1 << 16
_GRACE_SECONDS = 0.2


@dataclass(frozen=True)
class _Told:
    """What came out of a sandbox."""

    result: bytes
    output: bytes
    ending: str  # why no more came


def run_with(backend: str, source: str, calls: Sequence[str], setup: str, limits: Limits) -> SandboxResult:
    """Runs `setup`, then `source`, then each of `calls`, in a sandbox that is made for this and gone afterwards.

    Raises:
        SandboxError: the sandbox did not come up.
        ValueError: `setup`, which no model wrote, failed.
    """
    started = time.monotonic()
    told = _run(LAUNCHERS[backend], (setup, source, *calls), limits)
    lines = told.result.split(b"\n")[:-1]  # the last one has no end: it was cut
    output = told.output.decode("utf-8", "replace")
    if lines[:1] != [READY]:
        raise SandboxError(f"{backend}: {told.ending}: {output.strip()[-300:]}")
    if lines[1:2] != [PREPARED]:
        if not setup:
            raise SandboxError(f"{backend}: said that it was ready, then {told.ending}: {output.strip()[-300:]}")
        raise ValueError(f"expected a set-up that runs, got {told.ending}: {output.strip()[-300:]}")
    ran = lines[2:3] == [STARTED]
    outcomes = [outcome(line) for line in lines[3 : 3 + len(calls)]] if ran else []
    missing: list[Returned | Failed] = [Failed(f"no result: {told.ending}")] * (len(calls) - len(outcomes))
    return SandboxResult(
        outcomes=(*outcomes, *missing),
        error="" if ran and not missing else _error(lines[2:3], told.ending),
        output=output,
        seconds=time.monotonic() - started,
    )


def _error(line: Sequence[bytes], ending: str) -> str:
    told = outcome(line[0]) if line and line[0] != STARTED else None
    return told.reason if isinstance(told, Failed) else ending


def _request(texts: Sequence[str], limits: Limits, others: int) -> bytes:
    """See `inside.request`."""
    contents = [text.encode("utf-8", "surrogatepass") for text in texts]
    tasks = limits.threads + 2 + others
    numbers = (limits.cpu_seconds, limits.memory_mib << 20, limits.files_mib << 20, tasks, *map(len, contents))
    return b"\n".join((" ".join(map(str, numbers)).encode(), b"".join(contents)))


def _run(launcher: Callable[[Channels, Limits], Launch], texts: Sequence[str], limits: Limits) -> _Told:
    with ExitStack() as ours, ExitStack() as theirs:
        result, channel = _pair(ours, theirs)
        output, printing = _pair(ours, theirs)
        home = _held(theirs, os.open(PREFIX, os.O_PATH | os.O_CLOEXEC))
        seccomp = _held(theirs, _memory_file(filter_program()))
        launch = launcher(Channels(channel, seccomp, home), limits)
        asked = _held(theirs, _memory_file(_request(texts, limits, launch.others)))
        try:
            process = subprocess.Popen(
                launch.command,
                env=launch.environment,
                stdin=asked,
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
            return _collected(process, result, output, limits)
        finally:
            _end(process)


def _collected(process: subprocess.Popen[bytes], result: int, output: int, limits: Limits) -> _Told:
    """All that comes until both ends are closed, a limit is reached or time is up."""
    deadline = time.monotonic() + limits.seconds
    most = limits.output_kib << 10
    kept = {result: b"", output: b""}
    cut = ""
    with selectors.DefaultSelector() as selector:
        for descriptor in kept:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and not cut:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                cut = f"took longer than {limits.seconds:g} s"
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                kept[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
                elif len(kept[key.fd]) > most:
                    cut = f"wrote more than {limits.output_kib} KiB"
    return _Told(kept[result], kept[output][:most], cut or _ending(process))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left. Bubblewrap's child goes first, so that bubblewrap is there to collect it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if process.poll() is None and children.is_file():
        for child in children.read_text().split():
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.kill(int(child), signal.SIGKILL)
                process.wait(_GRACE_SECONDS)
    process.kill()
    process.wait()


def _ending(process: subprocess.Popen[bytes]) -> str:
    """How a process ended that has closed its ends; one that lives on will not report anything any more."""
    try:
        status = process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return "closed its channels"
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return "was killed: CPU time or memory"
    return f"ended its process (status {status})"


def _pair(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """Sockets, to be read and written. Of a pipe a program could open the other end in /proc/self/fd, and empty it."""
    reading, writing = socket.socketpair()
    return _held(ours, reading.detach()), _held(theirs, writing.detach())


def _held(stack: ExitStack, descriptor: int) -> int:
    descriptor = above_standard(descriptor)
    stack.callback(os.close, descriptor)
    return descriptor


def _memory_file(content: bytes) -> int:
    """A file without a name that cannot be changed any more, to be read from its start."""
    descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return descriptor
