"""The process from which workers are forked, and what a worker does that runs reward functions.

The zygote loads the user's code once and has a single thread, so forking it is safe, and replacing a killed worker
takes milliseconds. Nothing here imports torch or transformers, so workers are small and start before the model is
loaded.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol

from grouprl.config.code_files import import_code, read_code
from grouprl.rewards.calls import Invalid, Signature, WrongCountError, call, describe, signature
from grouprl.rewards.functions import ComputeScore, scores_one_completion
from grouprl.rewards.workers.frames import receive_exactly, receive_frame, send_frame, unpack
from grouprl.types import UserError

REQUEST_SECONDS = 10.0  # a zygote answers in milliseconds, unless it is stopped or dead
_NUMBER = struct.Struct("<i")  # a request, 0 or the worker to kill; and a reply
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

Source = bytes | tuple[str, str, dict[str, Any]] | tuple[str, str, dict[str, Any], dict[str, bytes]]
"""A reward function: pickled by value, or (file, name, arguments), with the sources that `read_code` gives, if read."""

_MIB = 1 << 20
dumps = json.dumps  # a reference taken now, because a user's code may replace json.dumps
MOST = 16 << 10  # bytes of one call
_WAIT_SECONDS = 1.0  # longest wait for the last bytes of a call


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


class Work(Protocol):
    """What the processes of a zygote do."""

    def load(self, report: Callable[[str], None]) -> Any:
        """Loads the user's code in the zygote; returns what the run gets, as JSON. `report` says what is being loaded.

        Raises:
            UserError: it cannot be loaded.
        """
        ...

    def work(self, channel: socket.socket) -> None:
        """Answers the run's messages in a worker until the run closes the channel."""
        ...


@dataclass
class _Zygote:
    control: socket.socket
    work: Work
    workers: set[int] = field(default_factory=set)


def serve(control_fd: int, run: int) -> None:
    """Runs a zygote: it loads the work that the run sends, then forks and kills workers on request.

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
    adopt_orphans()
    control = socket.socket(fileno=control_fd)
    with suppress(EOFError, OSError):  # the run ended or was killed
        zygote = _Zygote(control, unpack(receive_frame(control)))
        try:
            _serve(zygote)
        finally:
            for pid in zygote.workers:
                _kill(pid)
            _kill_strays(set())


def _serve(zygote: _Zygote) -> None:
    def send(kind: str, value: Any) -> None:
        send_frame(zygote.control, dumps({kind: value}).encode())

    try:
        send("loaded", zygote.work.load(lambda loading: send("loading", loading)))
    except UserError as error:
        return send("error", str(error))
    threads = Path("/proc/self/task")
    if threads.is_dir() and len(list(threads.iterdir())) > 1:
        print("warning: your code started threads while it was imported; workers do not have them", file=sys.stderr)
    gc.freeze()  # forked workers then share the memory of what was imported

    def reap(_number: int, _frame: FrameType | None) -> None:
        for pid in _children() - zygote.workers:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    signal.signal(signal.SIGCHLD, reap)
    while True:
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
            zygote.work.work(socket.socket(fileno=fd))
    finally:
        os._exit(0)


def fork_once(what: Callable[[], bytes]) -> bytes:
    """Runs a function in a child of the zygote; returns what it gave, or nothing if the child ended before."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            with open(theirs, "wb") as out:
                out.write(what())
        except BaseException:  # noqa: BLE001  user code may raise anything
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        output = pipe.read()
    _kill(pid)
    _kill_strays(set())
    return output


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


@dataclass
class RewardWork:
    """Reward functions by name, and the limits of a call."""

    sources: Mapping[str, Source]
    memory_mib: int
    cpu_seconds: int
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def load(self, report: Callable[[str], None]) -> Any:
        """Loads the functions; gives their signatures."""
        signatures, modules = {}, dict[str, ModuleType]()
        for name, source in self.sources.items():
            report(f"reward {name}" + (f" of {source[0]}" if isinstance(source, tuple) else ""))
            try:
                function = load_object(source, modules)
                if not isinstance(source, bytes):
                    _, function_name, arguments, *_ = source
                    if callable(function) and scores_one_completion(function):
                        function = ComputeScore(function, arguments)
                    elif arguments or isinstance(function, type):
                        function = function(**arguments)
                    if not callable(function):
                        raise TypeError(f"expected {function_name} to be a function, got {function!r}")
                self.functions[name] = function
                signatures[name] = astuple(signature(self.functions[name]))
            except BaseException as error:  # user code may raise anything
                raise UserError(
                    f"reward {name}: {describe(error)}: expected a reward function that can be loaded; fix it"
                ) from error
        return signatures

    def work(self, channel: socket.socket) -> None:
        """Receives jobs as parcels and returns values as JSON, which is safe to read."""
        printed = ProcessOutput("a reward")
        held = limit_memory(self.memory_mib)
        provided = {name: signature(function).provided for name, function in self.functions.items()}
        pid = os.getpid()
        runner = asyncio.Runner()  # one event loop for all calls, so that connections opened in it stay usable
        while True:
            try:
                message = receive_frame(channel)
            except (EOFError, OSError):
                return
            used = resource.getrusage(resource.RUSAGE_SELF)
            _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + self.cpu_seconds)
            printed.begin_call()
            reply = _answer(message, self.functions, provided, runner.run)
            del message
            if os.getpid() != pid:  # a function that forked returns in both processes
                os._exit(0)
            printed.end_call()
            send_frame(channel, dumps(reply | {"grown": _data_mib() - held}).encode())


def signature_of(parts: Sequence[Any]) -> Signature:
    """The signature that `RewardWork.load` gave, after its way through JSON."""
    required, accepted, one_of = parts
    return Signature(tuple(required), None if accepted is None else tuple(accepted), tuple(one_of))


def load_object(source: Source, modules: dict[str, ModuleType]) -> Any:
    """Unpacks an object, or takes it from its file; `modules` has the files that were imported so far."""
    if isinstance(source, bytes):
        return unpack(source)
    path, name, _, *rest = source
    if path not in modules:
        code = rest[0] if rest else read_code(Path(path))
        modules[path] = import_code(path, code, f"reward_file_{len(modules)}")
    if not hasattr(modules[path], name):
        there = [key for key, value in vars(modules[path]).items() if callable(value) and key[0] != "_"]
        raise AttributeError(f"expected {name!r} in {path}, which has {', '.join(there) or 'no functions'}")
    return getattr(modules[path], name)


def adopt_orphans() -> None:
    """From now on the orphans of this process's children become its own children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _answer(
    message: bytes,
    functions: Mapping[str, Callable[..., Any]],
    provided: Mapping[str, Sequence[str]],
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> dict[str, Any]:
    try:
        name, per_step, state, arguments, completions = unpack(message)
        function, names = functions[name], provided[name]
        called = call(function, arguments, completions, provided=names, state=state, per_step=per_step, run=run)
        values = [{"invalid": str(v.reason)} if isinstance(v, Invalid) else v for v in called.values]
        return {"values": values, "extra": called.extra, "metrics": called.metrics}
    except WrongCountError as error:
        return {"error": f"gave a wrong result: {error}", "of_call": True}
    except BaseException as error:  # noqa: BLE001  user code: report any exception, never turn it into a reward
        return {"error": f"raised {describe(error)}", "memory": isinstance(error, MemoryError)}


def limit_memory(memory_mib: int) -> int:
    """Limits what this process allocates from now, and has it leave no core; returns its memory now, in MiB."""
    held = _data_mib()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, (held + memory_mib) * _MIB)
    return held


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _data_mib() -> int:
    """Private memory of this process in MiB, as RLIMIT_DATA counts it; 0 on systems other than Linux."""
    if sys.platform != "linux":
        return 0
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize() // _MIB


class ProcessOutput:
    """The output of this process and its children: it goes through a pipe that a thread reads."""

    def __init__(self, printer: str) -> None:
        """`printer` names who prints, for a warning."""
        self._printer = printer
        self._out = os.dup(2)
        self._pipe, write = os.pipe()
        for stream in (1, 2):
            os.dup2(write, stream)
        os.close(write)
        self._left, self._said = MOST, False
        threading.Thread(target=self._pass_on, daemon=True).start()

    def begin_call(self) -> None:
        """A call starts: it may print as much as every other."""
        self._left = MOST

    def end_call(self) -> None:
        """Waits until what the call printed has been passed on: its worker may be killed at any time from now."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a function may have replaced or closed it
                stream.flush()
        until = time.monotonic() + _WAIT_SECONDS
        while struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)))[0] and time.monotonic() < until:
            time.sleep(0.0005)

    def _pass_on(self) -> None:
        with suppress(OSError):  # the terminal or the log is gone: the pipe is closed with the worker
            while data := os.read(self._pipe, 1 << 16):
                if shown := data[: max(0, self._left)]:
                    os.write(self._out, shown)
                self._left -= len(data)
                if self._left < 0 and not self._said:
                    self._said = True
                    warning = f"\n[{self._printer} printed over {MOST} bytes in a call: the rest is dropped]\n"
                    os.write(self._out, warning.encode())
