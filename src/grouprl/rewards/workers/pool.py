"""The pool of killable processes that run reward functions; their hangs, crashes and leaks do not reach the run."""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, Self

from grouprl.config.run import ScoringConfig
from grouprl.forward.progress import PROGRESS
from grouprl.rewards.calls import (
    CallValues,
    Invalid,
    PendingValues,
    RewardCall,
    Signature,
    decode,
    readable,
)
from grouprl.rewards.workers.frames import ParcelError, is_quiet, pack, receive_frame, send_frame
from grouprl.rewards.workers.processes import Worker, WorkerProcesses, cause_of_death
from grouprl.rewards.workers.zygote import RewardWork, Source, signature_of
from grouprl.types import UserError

_CHECK_SECONDS = 0.5  # between two checks of an idle worker
_LONGEST_REPLY = 64 << 20


class RewardWorkers(Protocol):
    """What calls reward functions elsewhere than in this process."""

    def signatures(self) -> Mapping[str, Signature]:
        """The signature of each function."""
        ...

    def submit(self, call: RewardCall) -> PendingValues:
        """Starts one call; `gather` waits for its values."""
        ...


OpenWorkers = Callable[[Mapping[str, Source], ScoringConfig], AbstractContextManager[RewardWorkers]]
"""Starts workers that load these functions."""


@dataclass(frozen=True)
class _Job:
    call: RewardCall
    future: PendingValues = field(default_factory=Future)


@dataclass(frozen=True)
class _Failure:
    reason: str
    hung: bool = False  # the call hung; another attempt would take as long
    died: bool = False  # the worker died or must not be used again
    of_call: bool = False  # of no single completion: a wrong count, which a call for each could hide


class RewardPool:
    """Runs reward functions in worker processes. It is a context manager, whose end kills every process.

    When a call raises, hangs or dies, the pool calls the function again for each completion alone. Completions that
    fail alone are `Invalid`; the others keep their value. After the failure of an `is_batch` call, or a wrong count of
    values, all completions of the call are `Invalid`.

    Args:
        functions: the functions that the workers load, by name.
        limits: the number of workers, and the limits of one call.
    """

    def __init__(self, functions: Mapping[str, Source], limits: ScoringConfig) -> None:
        self._limits = limits
        self._jobs: queue.PriorityQueue[tuple[int, int, _Job]] = queue.PriorityQueue()  # in order of priority, number
        self._numbers = itertools.count()
        self._closed = False
        self._signatures: Mapping[str, Signature] | None = None
        self._processes = WorkerProcesses(RewardWork(dict(functions), limits.memory_mib, limits.cpu_seconds))
        self._threads = [
            threading.Thread(target=self._serve, daemon=True, name=f"reward-{number}")
            for number in range(limits.workers or cores())
        ]

    def signatures(self) -> Mapping[str, Signature]:
        """Returns the signature of each function; waits until all are loaded.

        Raises:
            UserError: a function cannot be loaded.
        """
        if self._signatures is None:
            self._signatures = {name: signature_of(parts) for name, parts in self._processes.loaded().items()}
            for thread in self._threads:
                thread.start()
        return self._signatures

    def submit(self, call: RewardCall) -> PendingValues:
        """Starts one call; see `gather`. Raises ValueError when the pool is closed."""
        if self._closed:
            raise ValueError("expected an open pool of rewards, got a closed one")
        self.signatures()
        return self._put(call, priority=1)

    @property
    def pids(self) -> list[int]:
        """The ids of the workers that are alive."""
        return self._processes.pids

    def close(self) -> None:
        """Kills every process; calls in progress never return."""
        self._closed = True
        self._processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _put(self, call: RewardCall, priority: int) -> PendingValues:
        self._jobs.put((priority, next(self._numbers), job := _Job(call)))
        return job.future

    def _serve(self) -> None:
        """Runs in a thread: takes jobs one after another, and replaces its worker process when needed."""
        worker: Worker | None = None
        while not self._closed:
            try:
                _, _, job = self._jobs.get(timeout=_CHECK_SECONDS if worker else 0.0)
            except queue.Empty:
                try:
                    worker = self._alive(worker)
                except (UserError, EOFError, OSError):  # no process can be started now
                    time.sleep(_CHECK_SECONDS)
                    worker = None
                continue
            try:
                about = "the batch" if job.call.is_batch else f"problem {job.call.about or 'unknown'}"
                process = worker.pid if worker else "not started"
                with PROGRESS.doing(partial(str, f"reward {job.call.name} of {about}, worker {process}")):
                    worker = self._run(job, self._alive(worker))
            except ParcelError as error:
                got = f"got {error}: use only text, numbers, lists and dictionaries"
                job.future.set_exception(
                    UserError(f"rewards: expected columns that can be sent to another process, {got}")
                )
            except (EOFError, OSError) as error:
                remedy = "check whether the machine is out of processes, files or memory"
                got = f"got {type(error).__name__}: {error}"
                job.future.set_exception(UserError(f"rewards: expected a process to run them in, {got}: {remedy}"))
            except BaseException as error:  # noqa: BLE001  whoever waits for the call must get an answer
                job.future.set_exception(error)

    def _alive(self, worker: Worker | None) -> Worker:
        """Returns the worker, or a new one if it died; an idle worker that sends data is broken and is replaced."""
        if worker is not None and not worker.ended and not is_quiet(worker.channel):
            self._processes.end(worker)
        return self._processes.fork() if worker is None or worker.ended else worker

    def _run(self, job: _Job, worker: Worker) -> Worker:
        """Runs a job; returns the worker for the next one."""
        result = self._attempt(job.call, worker)
        if isinstance(result, _Failure) and not job.call.divides and not result.hung and (worker.jobs or result.died):
            # Earlier jobs may have left memory or a working directory behind: try once more in a new process.
            self._processes.end(worker)
            worker = self._processes.fork()
            result = self._attempt(job.call, worker)
        worker.jobs += 1
        if isinstance(result, _Failure):
            if result.died:
                self._processes.end(worker)
            if job.call.divides and not result.of_call:  # a call for each completion
                singles = [{k: [values[n]] for k, values in job.call.keywords.items()} for n in range(len(job.call))]
                # Before further groups, because they may stop the run.
                parts = [self._put(replace(job.call, keywords=keywords), priority=0) for keywords in singles]
                job.future.set_result(parts)
            else:
                reasons = [Invalid(readable(result.reason))] * len(job.call)
                job.future.set_result(CallValues(reasons, {}))
        else:
            called, grown = result
            if grown > self._limits.memory_mib // 2:
                self._processes.end(worker)
            job.future.set_result(called)
        return worker

    def _attempt(self, call: RewardCall, worker: Worker) -> tuple[CallValues, int] | _Failure:
        """Makes a call; returns what it gave and the growth of the worker in MiB."""
        limits = self._limits
        arguments = self.signatures()[call.name].arguments(call.keywords)
        message = pack((call.name, call.per_step, call.state, arguments, call.keywords["completions"]))
        started = time.monotonic()
        try:
            send_frame(worker.channel, message, seconds=limits.seconds)
            left = max(0.0, started + limits.seconds - time.monotonic())
            reply = json.loads(receive_frame(worker.channel, seconds=left, most=_LONGEST_REPLY))
            if reply.get("memory"):
                return _Failure(f"needed more than {limits.memory_mib} MiB of memory", died=True)
            if "values" not in reply:
                return _Failure(str(reply["error"]), of_call=bool(reply.get("of_call")))
            return decode(reply, call), int(reply["grown"])
        except TimeoutError:
            return _Failure(f"took longer than {limits.seconds:g} s", hung=True, died=True)
        except (EOFError, OSError):
            status = self._processes.end(worker)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
                return _Failure(f"used more than {limits.cpu_seconds} s of CPU time", died=True)
            return _Failure(cause_of_death(status), died=True)
        except (ValueError, KeyError, AttributeError, TypeError):  # the reply is not a worker's JSON
            return _Failure("wrote into the connection of its worker", died=True)


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
