"""The process that reward workers are forked from. It imports the reward functions once and has a single thread, so
that forking it is safe, and a worker that had to be killed is replaced in milliseconds.

Nothing here imports torch or transformers: workers stay small, and start before the model is loaded.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grouprl.rewards.calling import Signature, signature, work
from grouprl.rewards.parcels import pack, unpack

FORK, KILL = b"F", b"K"
_REQUEST = struct.Struct("<ci")
_REPLY = struct.Struct("<i")
_LENGTH = struct.Struct("<Q")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

Source = bytes | tuple[str, str, dict[str, Any]]
"""A reward function: pickled by value, or the file it stands in, its name and its arguments."""


def send(channel: socket.socket, message: object) -> None:
    """One pickled message."""
    packed = pack(message)
    channel.sendall(_LENGTH.pack(len(packed)) + packed)


def receive(channel: socket.socket) -> Any:
    """The next message of `send`. Raises EOFError when the other side is gone."""
    return unpack(_exactly(channel, _LENGTH.unpack(_exactly(channel, _LENGTH.size))[0]))


def request(channel: socket.socket, command: bytes, pid: int = 0, fd: int | None = None) -> int:
    """Asks the zygote to FORK a worker on the socket `fd` (gives its pid) or to KILL one (gives its wait status)."""
    socket.send_fds(channel, [_REQUEST.pack(command, pid)], [] if fd is None else [fd])
    answer: int = _REPLY.unpack(_exactly(channel, _REPLY.size))[0]
    return answer


def serve(control_fd: int) -> None:
    """The life of a zygote: load the functions, tell what they are called with, then fork and kill on request."""
    control = socket.socket(fileno=control_fd)
    os.dup2(2, 1)  # what rewards print must not mix with a command's own output
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whatever a worker leaves behind becomes a child of this process
    sources, memory_mib, cpu_seconds = receive(control)
    functions: dict[str, Callable[..., Any]] = {}
    signatures: dict[str, Signature] = {}
    for name, source in sources.items():
        try:
            functions[name] = _load(source)
            signatures[name] = signature(functions[name])
        except BaseException as error:  # noqa: BLE001  a stranger's file: told to the one who wrote it
            send(control, f"reward {name}: {describe(error)}")
            return
    send(control, signatures)
    gc.freeze()  # forked workers then share the memory of what was imported
    workers: set[int] = set()
    try:
        while True:
            _one_request(control, workers, functions, memory_mib, cpu_seconds)
    except (EOFError, OSError):  # the run is over, or was killed
        for pid in workers:
            _kill(pid)
        _kill_strays(set())


def describe(error: BaseException) -> str:
    """An error in a line: its kind, what it says, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error!s:.300}{place}"


def _one_request(
    control: socket.socket,
    workers: set[int],
    functions: dict[str, Callable[..., Any]],
    memory_mib: int,
    cpu_seconds: int,
) -> None:
    message, fds, _, _ = socket.recv_fds(control, _REQUEST.size, 1)
    if not message:
        raise EOFError
    command, pid = _REQUEST.unpack(message + _exactly(control, _REQUEST.size - len(message)))
    if command == FORK:
        control.sendall(_REPLY.pack(_fork(control, fds[0], workers, functions, memory_mib, cpu_seconds)))
        os.close(fds[0])
        return
    workers.discard(pid)
    status = _kill(pid)
    _kill_strays(workers)
    control.sendall(_REPLY.pack(status))


def _fork(
    control: socket.socket,
    fd: int,
    workers: set[int],
    functions: dict[str, Callable[..., Any]],
    memory_mib: int,
    cpu_seconds: int,
) -> int:
    zygote = os.getpid()
    pid = os.fork()
    if pid:
        workers.add(pid)
        return pid
    try:
        control.close()
        os.setsid()  # a group of its own: killed as a whole
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == zygote:
            work(Connection(fd), functions, memory_mib, cpu_seconds, describe)
    finally:
        os._exit(0)


def _kill(pid: int) -> int:
    """Ends a worker with its process group. Its wait status: how it ended, if it had ended before."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        return os.waitpid(pid, 0)[1]
    return 0


def _kill_strays(workers: set[int]) -> None:
    """Ends what dead workers left behind, and what that leaves behind in turn."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.is_file() and (strays := set(map(int, children.read_text().split())) - workers):
        for pid in strays:
            _kill(pid)


def _load(source: Source) -> Callable[..., Any]:
    if isinstance(source, bytes):
        loaded: Callable[..., Any] = unpack(source)
        return loaded
    path, name, arguments = source
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up
    sys.path.insert(0, str(Path(path).parent))
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if arguments or isinstance(function, type):
        function = function(**arguments)
    if not callable(function):
        raise TypeError(f"expected {name} to be a function, got {function!r}")
    found: Callable[..., Any] = function
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
