"""The process from which reward workers are forked. It imports the reward functions once and has a single thread, so
forking it is safe, and replacing a killed worker takes milliseconds.

Nothing here imports torch or transformers, so workers are small and start before the model is loaded.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from grouprl.rewards.compute_score import ComputeScore, scores_one_completion
from grouprl.rewards.own_modules import import_code, read_code
from grouprl.rewards.workers.calling import Signature, describe, signature, work
from grouprl.rewards.workers.frames import receive_exactly, receive_frame, send_frame
from grouprl.rewards.workers.parcels import pack, unpack

REQUEST_SECONDS = 10.0  # a zygote answers in milliseconds, unless it is stopped or dead
_NUMBER = struct.Struct("<i")  # a request, 0 or the worker to kill; and a reply
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

Source = bytes | tuple[str, str, dict[str, Any]] | tuple[str, str, dict[str, Any], dict[str, bytes]]
"""A reward function: pickled by value, or (file, name, arguments), with the sources that `read_code` gives, if read."""


def request(channel: socket.socket, pid: int = 0, fd: int | None = None) -> int:
    """Asks the zygote to fork a worker on the socket `fd` (returns its pid) or to kill one (returns its wait status).

    Raises OSError or EOFError when the zygote does not answer or fails.
    """
    channel.settimeout(REQUEST_SECONDS)
    socket.send_fds(channel, [_NUMBER.pack(pid)], [] if fd is None else [fd])
    answer: int = _NUMBER.unpack(receive_exactly(channel, _NUMBER.size, time.monotonic() + REQUEST_SECONDS))[0]
    if answer < 0:
        raise OSError(-answer, os.strerror(-answer))
    return answer


@dataclass
class _Zygote:
    control: socket.socket
    memory_mib: int
    cpu_seconds: int
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)


def serve(control_fd: int, run: int) -> None:
    """Runs a zygote: it loads the functions, sends their signatures, then forks and kills workers on request.

    Args:
        control_fd: file descriptor of the socket to the run.
        run: process id of the run; the zygote ends with it.
    """
    os.set_inheritable(control_fd, False)  # else a process that a reward file starts would keep the socket open
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != run:
        return
    with suppress(OSError):
        os.dup2(2, 1)  # keep what rewards print apart from a command's output
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of a worker become children of this process
    control = socket.socket(fileno=control_fd)
    with suppress(EOFError, OSError):  # the run ended or was killed
        sources, memory_mib, cpu_seconds = unpack(receive_frame(control))
        zygote = _Zygote(control, memory_mib, cpu_seconds)
        try:
            _serve(zygote, sources)
        finally:
            for pid in zygote.workers:
                _kill(pid)
            _kill_strays(set())


def _serve(zygote: _Zygote, sources: dict[str, Source]) -> None:
    signatures: dict[str, Signature] = {}
    modules: dict[str, ModuleType] = {}
    for name, source in sources.items():
        send_frame(zygote.control, pack((name,)))
        try:
            zygote.functions[name] = _load(source, modules)
            signatures[name] = signature(zygote.functions[name])
        except BaseException as error:  # noqa: BLE001  user code may raise anything; the run reports it
            send_frame(zygote.control, pack(f"reward {name}: {describe(error)}"))
            return
    send_frame(zygote.control, pack(signatures))
    threads = Path("/proc/self/task")
    if threads.is_dir() and len(list(threads.iterdir())) > 1:
        print("warning: a reward started threads while it was imported; workers do not have them", file=sys.stderr)
    gc.freeze()  # forked workers then share the memory of what was imported

    def reap(_number: int, _frame: FrameType | None) -> None:
        for pid in _children() - zygote.workers:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    signal.signal(signal.SIGCHLD, reap)
    while True:
        _one_request(zygote)


def _one_request(zygote: _Zygote) -> None:
    zygote.control.settimeout(None)
    message, fds, _, _ = socket.recv_fds(zygote.control, _NUMBER.size, 1)
    if not message:
        raise EOFError
    pid = _NUMBER.unpack(message + receive_exactly(zygote.control, _NUMBER.size - len(message)))[0]
    answer = 0
    if not pid:
        os.set_inheritable(fds[0], False)
        answer = _fork(zygote, fds[0])
        os.close(fds[0])
    elif pid in zygote.workers:  # a pid of an earlier zygote may belong to another process by now
        answer = _kill(pid)  # before it leaves `workers`, so that `reap` does not take its status
        zygote.workers.discard(pid)
        _kill_strays(zygote.workers)
    zygote.control.sendall(_NUMBER.pack(answer))


def _fork(zygote: _Zygote, fd: int) -> int:
    parent = os.getpid()
    # Block SIGCHLD, so that `reap` does not take a worker that dies at once for a stray.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return -(error.errno or 1)
    if pid:
        zygote.workers.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return pid
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        zygote.control.close()
        os.setsid()  # a process group, which can be killed as a whole
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            work(socket.socket(fileno=fd), zygote.functions, zygote.memory_mib, zygote.cpu_seconds)
    finally:
        os._exit(0)


def _kill(pid: int) -> int:
    """Kills a worker with its process group; returns its wait status."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 2.0
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            time.sleep(0.0005)
    return int(signal.SIGKILL)


def _kill_strays(workers: set[int]) -> None:
    """Kills the processes that dead workers left behind, and their children."""
    deadline = time.monotonic() + 2.0
    while (strays := _children() - workers) and time.monotonic() < deadline:
        for pid in strays:
            _kill(pid)


def _children() -> set[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(map(int, listed.read_text().split())) if listed.is_file() else set()


def _load(source: Source, modules: dict[str, ModuleType]) -> Callable[..., Any]:
    if isinstance(source, bytes):
        loaded: Callable[..., Any] = unpack(source)
        return loaded
    path, name, arguments, *given = source
    if path not in modules:
        code = given[0] if given else read_code(Path(path))
        modules[path] = import_code(path, code, f"reward_file_{len(modules)}")
    if not hasattr(modules[path], name):
        there = [known for known, value in vars(modules[path]).items() if callable(value) and known[0] != "_"]
        raise AttributeError(f"expected {name!r} in {path}, which has {', '.join(there) or 'no functions'}")
    function = getattr(modules[path], name)
    if callable(function) and scores_one_completion(function):
        return ComputeScore(function, arguments)
    if arguments or isinstance(function, type):
        function = function(**arguments)
    if not callable(function):
        raise TypeError(f"expected {name} to be a function, got {function!r}")
    found: Callable[..., Any] = function
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
