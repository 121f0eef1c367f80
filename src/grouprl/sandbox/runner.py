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
    CallFailure,
    Limits,
    ReturnValue,
    SandboxError,
    SandboxResult,
    outcome,
)

LAUNCHERS: Mapping[str, Callable[[Channels, Limits], Launch]] = {
    "bubblewrap": bubblewrap.launch,
    "landlock": landlock.launch,
}
"""The backends by name; the stronger one comes first."""

_CHUNK = 1 << 16
_GRACE_SECONDS = 0.2


@dataclass(frozen=True)
class _Transcript:
    """Everything that a sandbox wrote."""

    result: bytes  # reports of the guest
    output: bytes  # printed by the program
    ending: str  # why the sandbox wrote no more


def run_with(backend: str, source: str, calls: Sequence[str], setup: str, limits: Limits) -> SandboxResult:
    """Runs `setup`, then `source`, then each of `calls`, in a fresh sandbox, and ends the sandbox.

    Raises:
        SandboxError: the sandbox did not start.
        ValueError: `setup`, which is trusted, failed.
    """
    started = time.monotonic()
    transcript = _run(LAUNCHERS[backend], (setup, source, *calls), limits)
    ending = transcript.ending
    lines = transcript.result.split(b"\n")[:-1]  # text after the last line end is an incomplete line
    output = transcript.output.decode("utf-8", "replace")
    if lines[:1] != [READY]:
        raise SandboxError(f"{backend}: {ending}: {output.strip()[-300:]}")
    if lines[1:2] != [PREPARED]:
        if not setup:
            raise SandboxError(f"{backend}: reported that it was ready, then {ending}: {output.strip()[-300:]}")
        raise ValueError(f"expected a set-up that runs, got {ending}: {output.strip()[-300:]}")
    ran = lines[2:3] == [STARTED]
    outcomes = [outcome(line) for line in lines[3 : 3 + len(calls)]] if ran else []
    missing: list[ReturnValue | CallFailure] = [CallFailure(f"no result: {ending}")] * (len(calls) - len(outcomes))
    return SandboxResult(
        outcomes=(*outcomes, *missing),
        error="" if ran and not missing else _error(lines[2:3], ending),
        output=output,
        seconds=time.monotonic() - started,
    )


def _error(line: Sequence[bytes], ending: str) -> str:
    reported = outcome(line[0]) if line and line[0] != STARTED else None
    return reported.reason if isinstance(reported, CallFailure) else ending


def _request(texts: Sequence[str], limits: Limits, others: int) -> bytes:
    """The request in the form that `guest.request` reads."""
    contents = [text.encode("utf-8", "surrogatepass") for text in texts]
    tasks = limits.threads + 2 + others
    numbers = (limits.cpu_seconds, limits.memory_mib << 20, limits.files_mib << 20, tasks, *map(len, contents))
    return b"\n".join((" ".join(map(str, numbers)).encode(), b"".join(contents)))


def _run(launcher: Callable[[Channels, Limits], Launch], texts: Sequence[str], limits: Limits) -> _Transcript:
    with ExitStack() as ours, ExitStack() as theirs:
        result, channel = _socket_pair(ours, theirs)
        output, printing = _socket_pair(ours, theirs)
        home = _close_with(theirs, os.open(PREFIX, os.O_PATH | os.O_CLOEXEC))
        seccomp = _close_with(theirs, _memory_file(filter_program()))
        launch = launcher(Channels(channel, seccomp, home), limits)
        request = _close_with(theirs, _memory_file(_request(texts, limits, launch.others)))
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
            return _collect(process, result, output, limits)
        finally:
            _end(process)


def _collect(process: subprocess.Popen[bytes], result: int, output: int, limits: Limits) -> _Transcript:
    """Reads both channels until the sandbox closes them, a limit is reached or time is up."""
    deadline = time.monotonic() + limits.seconds
    most = limits.output_kib << 10
    written = {result: b"", output: b""}
    exceeded = ""
    with selectors.DefaultSelector() as selector:
        for descriptor in written:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and not exceeded:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                exceeded = f"took longer than {limits.seconds:g} s"
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                written[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
                elif len(written[key.fd]) > most:
                    exceeded = f"wrote more than {limits.output_kib} KiB"
    return _Transcript(written[result], written[output][:most], exceeded or _ending(process))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the processes that are left. Bubblewrap's child is killed first, so that bubblewrap can reap it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if process.poll() is None and children.is_file():
        for child in children.read_text().split():
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.kill(int(child), signal.SIGKILL)
                process.wait(_GRACE_SECONDS)
    process.kill()
    process.wait()


def _ending(process: subprocess.Popen[bytes]) -> str:
    """How a process ended that has closed its channels; a process that still runs can report nothing any more."""
    try:
        status = process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return "closed its channels"
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return "was killed: CPU time or memory"
    return f"ended its process (status {status})"


def _socket_pair(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """Sockets to read from and to write to. A program could reopen the read end of a pipe in /proc/self/fd."""
    reading, writing = socket.socketpair()
    return _close_with(ours, reading.detach()), _close_with(theirs, writing.detach())


def _close_with(stack: ExitStack, descriptor: int) -> int:
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
