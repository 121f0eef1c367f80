"""A shell for commands that a policy wrote: a small system of its own, with files that last until it is closed.

It is bubblewrap's alone, because Landlock can show no folder under another name.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grouprl.checks.sandbox.backends import Channels, shell_bubblewrap, text_of
from grouprl.checks.sandbox.runner import close_with, end_sandbox, memory_file, why_unavailable
from grouprl.checks.sandbox.seccomp import filter_program
from grouprl.checks.sandbox.values import Limits, SandboxError
from grouprl.rewards.workers.frames import receive_frame, send_frame
from grouprl.types import UserError

SHELL_LIMITS = Limits(cpu_seconds=60, memory_mib=1024, files_mib=64, threads=48)
"""Of one shell; `cpu_seconds` and `memory_mib` of each process in it, `threads` of all together, processes included."""

_MARGIN_SECONDS = 3.0  # to start the system, and to end a command that is out of time
_MOST = 8 << 20  # bytes of a reply
_PROBE = "[ ! -e /home ] && ! touch /usr/probe && ! (echo > /dev/tcp/127.0.0.1/9) && touch /probe"  # 0 = confined


@dataclass(frozen=True)
class ShellResult:
    """What a command did."""

    status: int | None  # exit status; None = it was killed, or could not be started
    output: str  # what it printed, errors among it


class Shell:
    """Runs commands of bash one after the other, as root of a system without a network.

    `/usr` and the folders beside it are this machine's, read-only; everything else is empty, in memory and writable. A
    process that a command leaves in the background runs until `fresh` or `close`. Use it in one thread.
    """

    def __init__(self, limits: Limits = SHELL_LIMITS) -> None:
        """Starts the system. Raises SandboxError where bubblewrap is missing or cannot start."""
        with ExitStack() as theirs:
            self._channel, other = socket.socketpair()
            channel = close_with(theirs, other.detach())
            seccomp = close_with(theirs, memory_file(filter_program(processes=True)))
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  until the object ends
            launch = shell_bubblewrap(Channels(channel, seccomp, -1), limits)
            guest = close_with(theirs, memory_file(_guest(channel, limits)))
            self._process = subprocess.Popen(
                launch.command,
                env=launch.environment,
                stdin=guest,
                stdout=self._log,
                stderr=self._log,
                pass_fds=launch.descriptors,
                cwd="/",
                start_new_session=True,
            )

    def run(
        self,
        command: str,
        *,
        seconds: float,
        folder: str = "/",
        environment: Mapping[str, str] | None = None,
        files: bytes = b"",
        fresh: Sequence[str] = (),
    ) -> ShellResult:
        """Runs a command, and blocks until it has ended or is killed.

        Args:
            command: text for `bash -c`.
            seconds: longest time; then the command is killed with what it started, and the files stay.
            folder: where it runs; it is made where it is missing.
            environment: variables beside PATH, HOME and LANG.
            files: a tar archive that is unpacked at / before.
            fresh: folders that are new and empty before that; first every other process is killed.

        Raises:
            SandboxError: the system is gone.
        """
        request = {
            "command": command,
            "seconds": seconds,
            "folder": folder,
            "environment": dict(environment or {}),
            "files": base64.b64encode(files).decode(),
            "fresh": list(fresh),
        }
        try:
            send_frame(self._channel, json.dumps(request).encode(), seconds=seconds)
            reply: dict[str, Any] = json.loads(
                receive_frame(self._channel, seconds=seconds + _MARGIN_SECONDS, most=_MOST)
            )
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise SandboxError(f"the shell is gone ({type(error).__name__}): {self._said[-300:]}") from error
        return ShellResult(reply["status"], reply["output"])

    def close(self) -> None:
        """Ends every process of the system; its files are gone."""
        if self._process.poll() is None:
            end_sandbox(self._process)
        self._channel.close()

    @property
    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace").strip()


def _guest(channel: int, limits: Limits) -> bytes:
    numbers = {
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_AS": limits.memory_mib << 20,
        "RLIMIT_FSIZE": limits.files_mib << 20,
        "RLIMIT_NPROC": limits.threads,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }
    return f"{text_of('shell_guest.py')}\nserve({channel}, {numbers!r})".encode()


@lru_cache(maxsize=1)
def check_shell() -> None:
    """Raises UserError where no shell can be had here, or one that is not confined. The first call tries one."""
    reason = why_unavailable("bubblewrap")
    if reason is None:
        try:
            shell = Shell()
            result = shell.run(_PROBE, seconds=10.0)
            shell.close()
            reason = f"one that is not confined: {result.output}" if result.status != 0 else None
        except SandboxError as error:
            reason = str(error)
    if reason is not None:
        raise UserError(
            f"sandbox: expected bubblewrap for commands that a policy wrote, got {reason}: install bubblewrap (apt "
            "install bubblewrap) and allow user namespaces"
        )
