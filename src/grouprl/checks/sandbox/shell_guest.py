"""The guest that runs a shell's commands: process 1 of a small system, which ends with its connection.

No module imports this file; a fresh interpreter gets its text. A command is a process of its own, which can neither
signal process 1 nor read its memory: what is reported of it is what happened.
"""

from __future__ import annotations

import base64
import ctypes
import io
import json
import os
import resource
import signal
import subprocess
import tarfile
import tempfile
import time
from typing import Any

_HEAD = 8  # bytes of a message's length, as in rewards.workers.frames
_MOST = 1 << 20  # bytes of output that are reported
_SPARE = 1 << 20  # bytes kept for the files of `fresh`, however full the system is
_DUMPABLE = 4  # PR_SET_DUMPABLE; 0 closes this process's memory and descriptors to others of its user


def serve(channel: int, limits: dict[str, int]) -> None:
    """Answers requests until the other side closes the connection."""
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
    os.environ.pop("LD_LIBRARY_PATH", None)  # this interpreter's own
    with open("/etc/passwd", "w") as users:
        users.write("root:x:0:0:root:/root:/bin/bash\n")
    spare = tempfile.TemporaryFile(dir="/")  # noqa: SIM115  until the process ends
    spare.write(bytes(_SPARE))
    spare.flush()
    with os.fdopen(channel, "r+b", buffering=0) as stream:
        while len(head := stream.read(_HEAD)) == _HEAD:
            request, size = b"", int.from_bytes(head, "little")
            while len(request) < size:
                request += stream.read(size - len(request))
            reply = json.dumps(answer(json.loads(request), limits, spare)).encode()
            rest = len(reply).to_bytes(_HEAD, "little") + reply
            while rest:
                rest = rest[stream.write(rest) :]


def answer(request: dict[str, Any], limits: dict[str, int], spare: Any) -> dict[str, Any]:
    """Does what a request asks: new folders, files, a command. Gives the command's exit status and output."""
    try:
        if request["fresh"]:
            end_others()
            spare.truncate(0)
            os.chmod("/", 0o755)
        for folder in request["fresh"]:  # not emptied: that can be made hard
            if os.path.lexists(folder):
                os.rename(folder, f"{folder}-{time.monotonic_ns()}")
        for folder in (request["folder"], *request["fresh"]):
            os.makedirs(folder, exist_ok=True)
        if request["files"]:
            with tarfile.open(fileobj=io.BytesIO(base64.b64decode(request["files"]))) as archive:
                archive.extractall("/")
        return run(request["command"], request["folder"], request["environment"], request["seconds"], limits)
    except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        return {"status": None, "output": f"{type(error).__name__}: {error}"}


def run(
    command: str, folder: str, environment: dict[str, str], seconds: float, limits: dict[str, int]
) -> dict[str, Any]:
    """Runs a command of bash. What it starts in the background lasts, and prints no more."""

    def confine() -> None:
        for name, value in limits.items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))

    with tempfile.TemporaryFile(dir="/run") as output:  # not a pipe, which something in the background keeps open
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=confine,
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(1.0)
            status = None
        reap()
        output.seek(0)
        return {"status": status, "output": output.read(_MOST).decode("utf-8", "replace")}


def end_others() -> None:
    """Kills every other process."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        reap()


def reap() -> None:
    """Forgets processes that have ended, which count against the limit."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
