"""The pool of killable processes that reward functions run in: no hang, crash or leak of theirs reaches the run."""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from grouprl.scoring.calling import Signature, Value, decode, readable
from grouprl.scoring.frames import is_quiet, receive_frame, send_frame
from grouprl.scoring.invalid import Invalid
from grouprl.scoring.parcels import ParcelError, pack, unpack
from grouprl.scoring.zygote import FORK, KILL, Source, request
from grouprl.types import UserError

_LOOK_SECONDS = 0.5  # between two looks at an idle worker
_LOADING_SECONDS = 300.0  # importing torch and a model of one's own takes a while
_LONGEST_REPLY = 64 << 20
# -P and the order of the path: a file json.py in the working directory is not run in the place of Python's own.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from grouprl.scoring.zygote import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)

Keywords = Mapping[str, Sequence[Any]]
Scored = Future[list[Any]]
"""The values of one call, or a further `Scored` in the place of each completion that was called alone."""


@dataclass(frozen=True)
class Limits:
    """What one call of a reward function may use."""

    workers: int = 0  # processes; 0 = one for each core
    seconds: float = 10.0  # of the clock
    cpu_seconds: int = 20  # of all its threads together
    memory_mib: int = 2048  # beyond what the imports took


@dataclass(frozen=True, order=True)
class _Job:
    # Completions of a group that failed come before further groups: they decide whether the run goes on.
    priority: int
    number: int
    name: str = field(compare=False)
    per_step: bool = field(compare=False)
    keywords: Keywords = field(compare=False)
    completions: Sequence[Any] = field(compare=False)
    future: Scored = field(compare=False)


@dataclass
class _Worker:
    pid: int
    channel: socket.socket
    jobs: int = 0
    ended: bool = False


@dataclass(frozen=True)
class _Failure:
    reason: str
    hung: bool = False  # that is not tried again: it would take as long
    died: bool = False  # or is no longer to be used


class RewardPool:
    """Runs reward functions in worker processes. A context manager: leaving it ends every process.

    A call that raises, hangs, dies or gives a wrong count is made again for each of its completions alone; those that
    fail alone are `Invalid`, the others keep their value.

    Args:
        functions: by name, what the workers are to load.
        limits: of one call.
    """

    def __init__(self, functions: Mapping[str, Source], limits: Limits) -> None:
        self._functions, self._limits = functions, limits
        self._lock = threading.Lock()
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed = False
        self._live: set[int] = set()
        self._signatures: Mapping[str, Signature] | None = None
        self._zygote, self._control = self._started()
        self._threads = [
            threading.Thread(target=self._serve, daemon=True, name=f"reward-{place}")
            for place in range(limits.workers or _cores())
        ]

    def signatures(self) -> Mapping[str, Signature]:
        """What each function is called with; waits until all are loaded.

        Raises:
            UserError: one cannot be loaded.
        """
        if self._signatures is None:
            self._signatures = self._loaded()
            for thread in self._threads:
                thread.start()
        return self._signatures

    def submit(self, name: str, keywords: Keywords, *, per_step: bool = False) -> Scored:
        """Starts one call, on the completions of a group; see `gather`. Raises ValueError when the pool is closed."""
        if self._closed:
            raise ValueError("expected an open pool of rewards, got a closed one")
        arguments = self.signatures()[name].arguments(keywords)
        return self._put(1, name, per_step, arguments, keywords["completions"])

    @property
    def pids(self) -> list[int]:
        """Of the workers that are alive."""
        return list(self._live)

    def close(self) -> None:
        """Ends every process. Calls that have not ended never will."""
        self._closed = True
        self._control.close()  # the zygote ends with it, and takes its workers along
        with suppress(subprocess.TimeoutExpired):
            self._zygote.wait(2)
        self._zygote.kill()
        self._zygote.wait()
        for _ in self._threads:
            self._put(0, "", False, {}, ())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put(self, priority: int, name: str, per_step: bool, keywords: Keywords, completions: Sequence[Any]) -> Scored:
        future: Scored = Future()
        self._jobs.put(_Job(priority, next(self._numbers), name, per_step, keywords, completions, future))
        return future

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        path = json.dumps(sorted(map(str, sys.path), key=lambda place: place == ""))
        with theirs:
            command = [sys.executable, "-P", "-c", _START, path, str(theirs.fileno()), str(os.getpid())]
            # In a session of its own: Ctrl-C in the terminal is for the run alone, which then stops in order.
            zygote = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        with suppress(OSError):  # it ended at once: `_loaded` says so
            send_frame(ours, pack((dict(self._functions), self._limits.memory_mib, self._limits.cpu_seconds)))
        return zygote, ours

    def _loaded(self) -> Mapping[str, Signature]:
        try:
            told = unpack(receive_frame(self._control, seconds=_LOADING_SECONDS))
        except (EOFError, OSError) as error:
            raise UserError(
                f"rewards: expected {', '.join(self._functions)} to load within {_LOADING_SECONDS:g} s, got "
                f"{str(error) or 'a process that ended'}: see what it printed"
            ) from error
        if isinstance(told, str):
            raise UserError(f"{told}: expected a reward function that can be loaded; mend it")
        signatures: Mapping[str, Signature] = told
        return signatures

    def _serve(self) -> None:
        """A thread of the run: one worker process after another, one job after another."""
        worker: _Worker | None = None
        while not self._closed:
            try:
                job = self._jobs.get(timeout=_LOOK_SECONDS if worker else 0.0)
            except queue.Empty:
                worker = self._tended(worker)
                continue
            try:
                worker = self._run(job, self._alive(worker))
            except BaseException as error:  # noqa: BLE001  nobody may wait in vain for a call that cannot be made
                job.future.set_exception(_told(error))

    def _tended(self, worker: _Worker | None) -> _Worker | None:
        """A living worker while nothing is asked of it, if there can be one."""
        try:
            return self._alive(worker)
        except (UserError, EOFError, OSError):
            time.sleep(_LOOK_SECONDS)
            return None

    def _alive(self, worker: _Worker | None) -> _Worker:
        """The worker, or a new one in its place; an idle one has nothing to say unless it died, or lost its way."""
        if worker is not None and not worker.ended and not is_quiet(worker.channel):
            self._end(worker)
        return self._forked() if worker is None or worker.ended else worker

    def _run(self, job: _Job, worker: _Worker) -> _Worker:
        """Does a job; gives the worker that can do the next."""
        found = self._attempt(job, worker)
        if isinstance(found, _Failure) and len(job.completions) == 1 and not found.hung and (worker.jobs or found.died):
            # What earlier jobs left behind in the process (memory, a working directory) is not this completion's fault.
            self._end(worker)
            worker = self._forked()
            found = self._attempt(job, worker)
        worker.jobs += 1
        if isinstance(found, _Failure):
            if found.died:
                self._end(worker)
            job.future.set_result(self._apart(job, found))
        else:
            values, grown = found
            if grown > self._limits.memory_mib // 2:
                self._end(worker)
            job.future.set_result(values)
        return worker

    def _apart(self, job: _Job, failure: _Failure) -> list[Any]:
        """What a failed call comes to: each completion on its own, or, where it was alone already, the reason."""
        if len(job.completions) == 1:
            return [Invalid(readable(failure.reason))]
        return [
            self._put(
                0, job.name, job.per_step, {name: [values[n]] for name, values in job.keywords.items()}, [completion]
            )
            for n, completion in enumerate(job.completions)
        ]

    def _attempt(self, job: _Job, worker: _Worker) -> tuple[list[Value], int] | _Failure:
        """The values of a call, and how many MiB the worker has grown."""
        limits = self._limits
        message = _packed(job)
        started = time.monotonic()
        try:
            send_frame(worker.channel, message, seconds=limits.seconds)
            left = max(0.0, started + limits.seconds - time.monotonic())
            reply = json.loads(receive_frame(worker.channel, seconds=left, most=_LONGEST_REPLY))
            if reply.get("memory"):
                return _Failure(f"needed more than {limits.memory_mib} MiB of memory", died=True)
            if "values" not in reply:
                return _Failure(str(reply["error"]))
            return decode(reply["values"], len(job.completions)), int(reply["grown"])
        except TimeoutError:
            self._end(worker)
            return _Failure(f"took longer than {limits.seconds:g} s", hung=True, died=True)
        except (EOFError, OSError):
            return _Failure(_death(self._end(worker), limits), died=True)
        except (ValueError, KeyError, AttributeError, TypeError):  # not the JSON that workers write
            return _Failure("wrote into the connection of its worker", died=True)

    def _forked(self) -> _Worker:
        with self._lock:
            try:
                return self._asked_to_fork()
            except (EOFError, OSError):
                if self._closed:
                    raise
                # The zygote was killed or stopped, or cannot fork: begin again, once.
                self._zygote.kill()
                self._zygote.wait()
                self._control.close()
                self._live.clear()
                self._zygote, self._control = self._started()
                self._loaded()
                return self._asked_to_fork()

    def _asked_to_fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = request(self._control, FORK, fd=theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._live.add(pid)
        return _Worker(pid, ours)

    def _end(self, worker: _Worker) -> int:
        """Kills a worker and all that it started; its wait status."""
        if worker.ended:
            return signal.SIGKILL
        worker.ended = True
        worker.channel.close()
        with self._lock:
            self._live.discard(worker.pid)
            try:
                return request(self._control, KILL, worker.pid)
            except (EOFError, OSError):
                self._zygote.kill()  # what it answers from now on may belong to another question
                return signal.SIGKILL


def gather(scored: Scored) -> list[Value]:
    """The values of a call, in the order of its completions; waits for them."""
    return [gather(item)[0] if isinstance(item, Future) else item for item in scored.result()]


def _packed(job: _Job) -> bytes:
    try:
        return pack((job.name, job.per_step, job.keywords, job.completions))
    except ParcelError as error:
        raise UserError(
            f"rewards: expected columns that can be sent to another process, got {error}: keep to text, numbers, lists "
            "and dictionaries"
        ) from error


def _told(error: BaseException) -> BaseException:
    """What the run is stopped with when a call cannot be made at all."""
    if isinstance(error, EOFError | OSError):
        return UserError(
            f"rewards: expected a process to run them in, got {type(error).__name__}: {error}: see whether the machine "
            "is out of processes, files or memory"
        )
    return error


def _death(status: int, limits: Limits) -> str:
    if not os.WIFSIGNALED(status):
        return f"ended its process with code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return f"used more than {limits.cpu_seconds} s of CPU time"
    known = {one.value: one.name for one in signal.Signals}
    return f"crashed its process ({known.get(number, f'signal {number}')})"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
