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
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from grouprl.rewards.calling import Signature, Value, decode
from grouprl.rewards.invalid import Invalid
from grouprl.rewards.parcels import ParcelError, pack
from grouprl.rewards.zygote import FORK, KILL, Source, receive, request, send
from grouprl.types import UserError

_LOOK_SECONDS = 0.5  # between two looks at an idle worker
_LOADING_SECONDS = 300.0  # importing torch and a model of one's own takes a while
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from grouprl.rewards.zygote import serve; serve(int(sys.argv[2]))"
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
    channel: Connection
    jobs: int = 0


@dataclass(frozen=True)
class _Failure:
    reason: str
    by_state: bool  # memory or a crash: earlier jobs of the same process may have caused it


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
        self._pids: dict[int, int] = {}
        self._signatures: Mapping[str, Signature] | None = None
        self._zygote, self._control = self._started()
        self._threads = [
            threading.Thread(target=self._serve, args=(place,), daemon=True, name=f"reward-{place}")
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
        """Starts one call, on the completions of a group; see `gather`."""
        arguments = self.signatures()[name].arguments(keywords)
        return self._put(1, name, per_step, arguments, keywords["completions"])

    @property
    def pids(self) -> list[int]:
        """Of the workers that are alive."""
        return list(self._pids.values())

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
        with theirs:
            command = [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno())]
            # In a session of its own: Ctrl-C in the terminal is for the run alone, which then stops in order.
            zygote = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        send(ours, (dict(self._functions), self._limits.memory_mib, self._limits.cpu_seconds))
        return zygote, ours

    def _loaded(self) -> Mapping[str, Signature]:
        self._control.settimeout(_LOADING_SECONDS)
        try:
            told = receive(self._control)
        except (EOFError, OSError) as error:
            raise UserError(
                f"rewards: expected {', '.join(self._functions)} to load within {_LOADING_SECONDS:g} s, got "
                f"{str(error) or 'a process that ended'}: see what it printed"
            ) from error
        self._control.settimeout(None)
        if isinstance(told, str):
            raise UserError(f"{told}: expected a reward function that can be loaded; mend it")
        signatures: Mapping[str, Signature] = told
        return signatures

    def _serve(self, place: int) -> None:
        """A thread of the run: one worker process after another, one job after another."""
        worker: _Worker | None = None
        while not self._closed:
            job = None
            try:
                worker = self._alive(worker)
                self._pids[place] = worker.pid
                job = self._jobs.get(timeout=_LOOK_SECONDS)
                worker = self._run(job, worker)
            except queue.Empty:
                continue
            except (UserError, OSError, EOFError) as error:
                # Without a worker every call fails, this one or the next: nobody may wait for it in vain.
                (job or self._jobs.get()).future.set_exception(error)

    def _alive(self, worker: _Worker | None) -> _Worker:
        """The worker, or a new one in its place; an idle one has nothing to say unless it died."""
        if worker is not None and not worker.channel.closed and worker.channel.poll(0):
            self._end(worker)
        return self._forked() if worker is None or worker.channel.closed else worker

    def _run(self, job: _Job, worker: _Worker) -> _Worker:
        """Does a job; gives the worker, whose channel is closed when it cannot go on."""
        found = self._attempt(job, worker)
        if isinstance(found, _Failure) and found.by_state and worker.jobs and len(job.completions) == 1:
            self._end(worker)
            worker = self._forked()
            found = self._attempt(job, worker)
        if isinstance(found, _Failure):
            job.future.set_result(self._apart(job, found))
        else:
            job.future.set_result([decode(value) for value in found["values"]])
        worker.jobs += 1
        leaked = not isinstance(found, _Failure) and found["grown"] > self._limits.memory_mib // 2
        if leaked or (isinstance(found, _Failure) and found.by_state):
            self._end(worker)
        return worker

    def _apart(self, job: _Job, failure: _Failure) -> list[Any]:
        """What a failed call comes to: each completion on its own, or, where it was alone already, the reason."""
        if len(job.completions) == 1:
            return [Invalid(failure.reason)]
        return [
            self._put(
                0, job.name, job.per_step, {name: [values[n]] for name, values in job.keywords.items()}, [completion]
            )
            for n, completion in enumerate(job.completions)
        ]

    def _attempt(self, job: _Job, worker: _Worker) -> dict[str, Any] | _Failure:
        limits = self._limits
        message = _packed(job)
        try:
            worker.channel.send_bytes(message)
            if not worker.channel.poll(limits.seconds):
                self._end(worker)
                return _Failure(f"took longer than {limits.seconds:g} s", by_state=False)
            reply: dict[str, Any] = json.loads(worker.channel.recv_bytes())
        except (EOFError, OSError):
            return _Failure(_death(self._end(worker), limits), by_state=True)
        except ValueError:  # not the JSON that workers write
            self._end(worker)
            return _Failure("wrote into the connection of its worker", by_state=True)
        if reply.get("memory"):
            return _Failure(f"needed more than {limits.memory_mib} MiB of memory", by_state=True)
        return reply if "values" in reply else _Failure(reply["error"], by_state=False)

    def _forked(self) -> _Worker:
        with self._lock:
            try:
                return self._asked_to_fork()
            except (EOFError, OSError):
                if self._closed:
                    raise
                # The zygote itself was killed, its workers with it: begin again.
                self._zygote.kill()
                self._zygote.wait()
                self._control.close()
                self._zygote, self._control = self._started()
                self._loaded()
                return self._asked_to_fork()

    def _asked_to_fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pid = request(self._control, FORK, fd=theirs.fileno())
            return _Worker(pid, Connection(ours.detach()))

    def _end(self, worker: _Worker) -> int:
        """Kills a worker and all that it started; its wait status."""
        worker.channel.close()
        with self._lock:
            try:
                return request(self._control, KILL, worker.pid)
            except (EOFError, OSError):
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


def _death(status: int, limits: Limits) -> str:
    if not os.WIFSIGNALED(status):
        return f"ended its process with code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return f"used more than {limits.cpu_seconds} s of CPU time"
    return f"crashed its process ({signal.Signals(number).name})"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
