"""Runs jobs on the actors of a Ray cluster: each job until one actor answers, each answer taken once.

An actor that dies, or takes longer than the limit (because it hangs, or was stopped), is replaced, and its jobs are
given to the others. A late answer is dropped. So a job must give the same result wherever and how often it runs.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from grouprl.engines.ray_cluster import Cluster
from grouprl.types import UserError

Job = TypeVar("Job")
Result = TypeVar("Result")

_TICK = 0.02  # seconds until a new job or a passed deadline is noticed
_START_SECONDS = 300.0  # of an actor: its machine may download the model
_ATTEMPTS = 4  # actors that may be lost one after another, over one job or before the first answer of a place


class _Actor:
    """Lives in a process of its own: makes a function once, and calls it for each job."""

    def __init__(self, build: Callable[[], Callable[[Any], Any]]) -> None:
        self._error = ""
        try:
            self._do = build()
        except UserError as error:
            self._error = str(error)

    def describe(self) -> tuple[int, str, str]:
        return os.getpid(), socket.gethostname(), self._error

    def do(self, job: Any) -> tuple[str, Any]:
        try:
            return "", self._do(job)
        except UserError as error:
            return str(error), None


@dataclass(frozen=True, eq=False)
class _PendingJob(Generic[Job, Result]):
    """A job that waits for its answer."""

    job: Job
    future: Future[Result] = field(default_factory=Future)
    lost: list[str] = field(default_factory=list)  # the actors that were lost over it


@dataclass(eq=False)
class _Member:
    """An actor."""

    actor: Any
    index: int
    name: str
    process: tuple[int, str] = (0, "")  # id and host; known when it has started
    started: bool = False
    busy: int = 0  # jobs under way


@dataclass(frozen=True, eq=False)
class _ActorTurn:
    """What an actor does now: it starts, or computes a job."""

    member: _Member
    asked: _PendingJob[Any, Any] | None  # None = it starts
    deadline: float


class ActorPool(Generic[Job, Result]):
    """Actors that all do the same work. It is a context manager, whose end kills them.

    Args:
        cluster: where they live.
        what: their name in messages, such as "sampler".
        build: called once in each actor; returns the function that computes a job.
        count: the number of actors.
        at_once: jobs that an actor computes side by side, in threads.
        gpus: of an actor; may be a part of one.
        seconds: longest time of a job; the actor is then replaced.
    """

    def __init__(
        self,
        cluster: Cluster,
        what: str,
        build: Callable[[], Callable[[Job], Result]],
        *,
        count: int,
        seconds: float,
        at_once: int = 1,
        gpus: float = 0.0,
    ) -> None:
        self.ray, self._what, self._at_once, self._seconds, self._say = cluster.ray, what, at_once, seconds, cluster.say
        self._made = self.ray.remote(_Actor).options(
            num_cpus=cluster.settings.cpus, num_gpus=gpus, max_concurrency=at_once
        )
        self._build = build
        self._waiting: deque[_PendingJob[Job, Result]] = deque()
        self._turns: dict[Any, _ActorTurn] = {}
        self._members: list[_Member] = []
        self.count = count
        self._failed = [0] * count  # starts of each place in a row that failed
        self._error: UserError | None = None  # why the pool can do nothing any more
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"{what}s")
        for index in range(count):
            self._start(index)
        self._thread.start()

    def submit(self, job: Job, *, now: bool = False) -> Future[Result]:
        """Gives a job to the next free actor, after the jobs that wait; with `now`, before them.

        The future raises UserError when the job does, and when too many actors are lost.
        """
        asked = _PendingJob[Job, Result](job)
        (self._waiting.appendleft if now else self._waiting.append)(asked)
        if self._over.is_set():
            self._refuse_all()
        return asked.future

    @property
    def processes(self) -> list[tuple[int, str]]:
        """Process id and host of each actor that has started."""
        return [member.process for member in list(self._members) if member.started]

    def close(self) -> None:
        """Kills the actors; a job under way gets no answer."""
        self._over.set()
        self._thread.join(10.0)
        for member in self._members:
            self._kill(member)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self) -> None:
        """Runs in a thread of its own: gives jobs to actors, takes answers, and replaces actors that are lost."""
        try:
            while not self._over.is_set() and self._error is None:
                self._give()
                if self._turns:
                    done, _ = self.ray.wait(list(self._turns), timeout=_TICK)
                    for reference in done:
                        self._take(reference)
                    now = time.monotonic()
                    for late in [turn for turn in self._turns.values() if turn.deadline < now]:
                        self._lose(late.member, "did not answer in time")
                else:
                    time.sleep(_TICK)
        except UserError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  whoever waits for a job must get an answer
            self._error = UserError(f"expected a Ray cluster that runs {self._what}s, got {_first_line(error)}")
        finally:
            self._over.set()
            self._refuse_all()

    def _give(self) -> None:
        for member in sorted(self._members, key=lambda candidate: candidate.busy):
            if member.started and member.busy < self._at_once and self._waiting:
                asked = self._waiting.popleft()
                member.busy += 1
                turn = _ActorTurn(member, asked, time.monotonic() + self._seconds)
                self._turns[member.actor.do.remote(asked.job)] = turn

    def _take(self, reference: Any) -> None:
        turn = self._turns.get(reference)
        if turn is None:  # its actor was lost over another answer
            return
        member = turn.member
        try:
            answer = self.ray.get(reference, timeout=self._seconds)
        except self.ray.exceptions.RayActorError as error:
            self._lose(member, f"ended ({_first_line(error)})")
            return
        del self._turns[reference]
        if turn.asked is None:
            pid, host, reason = answer
            if reason:
                raise UserError(f"{self._what} {member.index} on {host}: {reason}")
            member.process, member.started = (pid, host), True
            member.name = f"{self._what} {member.index} (process {pid} on {host})"
            return
        member.busy -= 1
        self._failed[member.index] = 0
        reason, result = answer
        if reason:
            turn.asked.future.set_exception(UserError(reason))
        else:
            turn.asked.future.set_result(result)

    def _start(self, index: int) -> None:
        actor = self._made.remote(self._build)
        member = _Member(actor, index, f"{self._what} {index}")
        self._members.append(member)
        self._turns[actor.describe.remote()] = _ActorTurn(member, None, time.monotonic() + _START_SECONDS)

    def _lose(self, member: _Member, reason: str) -> None:
        """Replaces an actor, and puts its jobs before all others."""
        lost_turns = {reference: turn for reference, turn in self._turns.items() if turn.member is member}
        for reference in lost_turns:
            del self._turns[reference]
        self._members.remove(member)
        self._kill(member)
        self._failed[member.index] += 1
        again = [turn.asked for turn in lost_turns.values() if turn.asked is not None]
        for asked in again:
            asked.lost.append(f"{member.name} {reason}")
            if len(asked.lost) >= _ATTEMPTS:
                asked.future.set_exception(self._gave_up(asked.lost))
            else:
                self._waiting.appendleft(asked)
        if self._failed[member.index] >= _ATTEMPTS:
            raise self._gave_up([f"{member.name} {reason}"])
        self._say(
            f"{member.name} {reason}: it is replaced{f', and its jobs, {len(again)}, run again' if again else ''}."
        )
        self._start(member.index)

    def _gave_up(self, lost: Sequence[str]) -> UserError:
        return UserError(
            f"expected a {self._what} that answers, lost {_ATTEMPTS} one after another; {lost[-1]}: look at the "
            "cluster's logs, raise cluster.seconds for slower machines, and continue with --resume"
        )

    def _kill(self, member: _Member) -> None:
        # Ray asks the process to end, which one that was stopped never does.
        with suppress(Exception):
            self.ray.kill(member.actor, no_restart=True)
        pid, host = member.process
        if pid and host == socket.gethostname():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _refuse_all(self) -> None:
        error = self._error or UserError(f"expected {self._what}s, got a pool that was closed")
        open_jobs = [turn.asked for turn in self._turns.values() if turn.asked is not None]
        self._turns.clear()
        while self._waiting:
            open_jobs.append(self._waiting.popleft())
        for asked in open_jobs:
            if not asked.future.done():
                asked.future.set_exception(error)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
