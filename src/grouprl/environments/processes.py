"""Environments that run a user's code, each in processes of its own: no object, limit or crash reaches another episode.

A tool runs as the user of the run: a signal that it sends to another process, such as the parent of all, arrives.
"""

from __future__ import annotations

import base64
import json
import math
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.arguments import fitted
from grouprl.environments.base import NOT_AS_EXPECTED, Call, Fault, Observation, Opening, Schema, Verdict
from grouprl.environments.guest import EnvironmentWork, cut
from grouprl.rewards.workers.frames import ParcelError, Unsent, is_quiet, pack, receive_frame, send_frame
from grouprl.rewards.workers.processes import Worker, WorkerProcesses, cause_of_death
from grouprl.tasks.rows import NO_PROMPT
from grouprl.types import Problem, UserError

_CHECK_SECONDS = 0.05  # between two looks at what a process started
_MOST_PROCESSES = 64  # that the process of an environment may start
_CLOSING_SECONDS = 5.0
_LONGEST_REPLY = 16 << 20  # bytes; results are cut before they are sent
_KILLED = "was killed, or closed the connection of its process"


@dataclass(frozen=True)
class _Reply:
    """What a process answered, or why it does not: then it was killed."""

    text: str  # of a lost reply: a predicate
    fault: Fault | None = None
    reward: float | None = None
    done: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    held: str | None = None
    lost: bool = False

    @classmethod
    def read(cls, reply: Mapping[str, Any]) -> Self:
        """Reads JSON that a user's code may have written. Raises ValueError or the like for what no worker sends."""
        fault, reward = reply.get("fault"), reply.get("reward")
        if reward is not None and not math.isfinite(reward):  # OverflowError beyond what a float holds
            raise ValueError
        text, held = cut(reply["text"], _LONGEST_REPLY), reply.get("held")  # cut for its halves of characters
        if held is not None:
            base64.b64decode(held, validate=True)
        attributes = dict(reply.get("attributes", {}))
        return cls(text, fault and Fault(fault), reward, bool(reply.get("done")), attributes, held)

    def shown(self, subject: str, seconds: float = 0.0) -> Observation:
        """What the policy is shown of it."""
        if self.fault is None:
            return Observation(self.text, reward=self.reward, done=self.done, seconds=seconds)
        return Observation(f"error: {subject * self.lost}{self.text}", fault=self.fault, seconds=seconds)


class ProcessSource:
    """Makes environments of a user's code. Its processes start at once; it is a context manager, which ends them.

    Args:
        work: the code.
        limits: the limits of an episode.
    """

    def __init__(self, work: EnvironmentWork, limits: EnvironmentConfig) -> None:
        self.limits, self.is_game = limits, work.is_game
        self.processes = WorkerProcesses(work)
        self._kinds: Mapping[str, Any] = {}
        self._lock = threading.Lock()

    def ready(self) -> Self:
        """Waits until the code is loaded, and its tools are known.

        Raises:
            UserError: the code cannot be loaded, or a tool or a class is not as expected.
        """
        with self._lock:
            self._kinds = self._kinds or self.processes.loaded()
        return self

    def open(self, problem: Problem) -> ProcessEnvironment:
        """Makes the environment of an episode; its process starts with `reset`.

        Raises:
            UserError: the problem names no environment that is known; also as `ready`.
        """
        self.ready()
        keys = [kind.removeprefix("of ") for kind in self._kinds if kind]
        key = "" if keys == [""] else problem.columns.get("environment")
        if keys and key not in keys:
            raise UserError(
                f"{problem.where}: expected a column `environment` with one of {', '.join(keys)}, got {key!r:.80}: "
                "name one of them there"
            )
        return ProcessEnvironment(self, str(key) if keys else None, self._kinds[""], self._kinds.get(f"of {key}", {}))

    @property
    def gives_reward(self) -> bool:
        """Whether one of the environments gives a reward, once they are `ready`."""
        return any(kind.get("gives_reward") for kind in self._kinds.values())

    @property
    def has_objects(self) -> bool:
        """Whether the episodes have objects, which rewards get, once they are `ready`."""
        return any(self._kinds)

    def close(self) -> None:
        """Ends every process."""
        self.processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ProcessEnvironment:
    """One episode. Its object, if it has one, has a process, and so has each function that runs beside others.

    The process of a call without an answer is killed, so that a late answer reaches nobody. A function's next call gets
    a new process; an object is gone with its process.
    """

    def __init__(
        self, source: ProcessSource, key: str | None, functions: Mapping[str, Any], methods: Mapping[str, Any]
    ) -> None:
        """`key` is that of the object's class; None = there are functions alone."""
        self._source, self._key = source, key
        self._methods = {schema["function"]["name"] for schema in methods.get("tools", ())}
        self._gives_reward = bool(methods.get("gives_reward"))
        self._coroutines = set(methods.get("async", ()))
        self.tools: Sequence[Schema] = (*functions["tools"], *methods.get("tools", ()))
        self._schemas = {schema["function"]["name"]: schema for schema in self.tools}
        self._home: Worker | None = None  # the process of the object
        self._gone = ""  # why the object cannot be asked any more
        self._spares: list[Worker] = []  # processes for functions
        self._workers: list[Worker] = []  # all that live
        self._closed = False
        self._busy = threading.Lock()

    def reset(self, problem: Problem, seed: int) -> Opening:
        """Makes the object, and resets it with the problem's prompt and columns, as far as it accepts them.

        Raises:
            UserError: it cannot begin.
        """
        if self._key is None:
            return Opening()
        where = f"environment {self._key}".strip() + f" of {problem.where}"
        prompt = problem.prompt if isinstance(problem.prompt, str) else [dict(message) for message in problem.prompt]
        bare = problem.prompt is NO_PROMPT and not self._source.is_game  # TRL gives `reset` no prompt then
        row = ({} if bare else {"prompt": prompt}) | dict(problem.columns)
        if self._key:
            del row["environment"]
        with self._busy:
            try:
                self._home = self._forked()
                reply = self._request("reset", self._key, row, seed)
            except (ParcelError, EOFError, OSError) as error:
                raise UserError(
                    f"{where}: expected a process that takes its columns, got {type(error).__name__}: {error}: use "
                    "only text, numbers, lists and dictionaries, and see whether the machine is out of processes"
                ) from error
        if reply.fault:
            raise UserError(f"{where}: expected `reset` to begin an episode, got: {reply.text}; fix it")
        return Opening(reply.text) if self._source.is_game else Opening(reply.text, separator="")

    def call(self, calls: Sequence[Call]) -> list[Observation]:
        """Makes the calls of a turn; gives their observations in order.

        Functions run side by side. The methods of an object run in order, because they share its state, and then its
        coroutine functions side by side, as in TRL.
        """
        observations: dict[int, Observation] = {}
        arguments: dict[int, Mapping[str, Any]] = {}  # by the place of the call
        apart: list[list[int]] = []  # places of calls of functions, each with a process
        shared: list[int] = []  # places of calls of the object's methods
        for index, call in enumerate(calls):
            if call.tool not in self._schemas:
                said = f"expected one of the tools {', '.join(self._schemas) or '(none)'}, got {call.tool!r:.80}"
                observations[index] = _Reply(said, Fault.UNKNOWN_TOOL).shown("")
                continue
            try:
                arguments[index] = fitted(call.arguments, self._schemas[call.tool]["function"]["parameters"])
            except ValueError as error:
                observations[index] = _Reply(f"{call.tool}: {error}", Fault.ARGUMENTS).shown("")
            else:
                shared += [index] * (call.tool in self._methods)
                apart += [[index]] * (call.tool not in self._methods)
        calls = [replace(call, arguments=arguments.get(index, {})) for index, call in enumerate(calls)]
        together = [index for index in shared if calls[index].tool in self._coroutines]
        groups = [[index] for index in shared if index not in together] + [together] * bool(together)
        jobs = [partial(self._make, calls, [places], observations) for places in apart]
        jobs += [partial(self._make, calls, groups, observations)] * bool(groups)
        with self._busy, ThreadPoolExecutor(max(1, len(jobs))) as threads:
            for done in [threads.submit(job) for job in jobs]:
                done.result()
        return [observations[index] for index in range(len(calls))]

    def reply(self, message: str) -> Observation | None:
        """Gives a message to a text game; None = the environment is none."""
        if not self._source.is_game:
            return None
        started = time.monotonic()
        with self._busy:
            reply = self._request("step", message, seconds=self._source.limits.tool_seconds)
        return reply.shown("the game ", time.monotonic() - started)

    def verdict(self) -> Verdict:
        """The sum of a game's rewards, or what `get_reward` gives."""
        if self._key is None:
            return Verdict()
        with self._busy:
            reply = self._request("verdict")
        held = reply.held
        if reply.fault and held is None:
            held = base64.b64encode(pack(Unsent(reply.text))).decode()
        reason = f"the environment's reward: {reply.text}" if reply.fault and self._gives_reward else ""
        return Verdict(reply.reward, reason, reply.attributes, held)

    def close(self) -> None:
        """Ends the processes; a call in progress gives a fault. The object may first end what it holds elsewhere."""
        if self._closed:
            return
        self._closed = True
        free = self._busy.acquire(blocking=False)
        if not free:
            for worker in list(self._workers):
                with suppress(OSError):
                    worker.channel.shutdown(socket.SHUT_RDWR)  # who reads it gets the end at once
            free = self._busy.acquire(timeout=_CLOSING_SECONDS)
        if self._home and not self._gone:
            self._request("close", seconds=_CLOSING_SECONDS)
        for worker in list(self._workers):
            self._end(worker)
        self._gone = "the episode is closed"
        if free:
            self._busy.release()

    def _make(
        self, calls: Sequence[Call], groups: Sequence[Sequence[int]], observations: dict[int, Observation]
    ) -> None:
        """Makes calls, one group of places after the other; those of a group side by side in one process."""
        for places in groups:
            started = time.monotonic()
            wired = [(calls[index].tool, dict(calls[index].arguments)) for index in places]
            if wired[0][0] in self._methods:
                replies = self._ask_object("call", wired, len(places), self._source.limits.tool_seconds)
            else:
                replies = [self._call_function(wired)]
            for index, reply in zip(places, replies, strict=True):
                observations[index] = reply.shown(f"{calls[index].tool} ", time.monotonic() - started)

    def _call_function(self, wired: object) -> _Reply:
        """Calls a function in a process that no other call has at the time."""
        if self._closed:
            return _Reply("cannot be called: the episode is closed", Fault.CRASH, lost=True)
        worker: Worker | None = None
        try:
            while worker is None and self._spares:
                with suppress(IndexError):  # another thread took the last
                    spare = self._spares.pop()
                    if is_quiet(spare.channel):
                        worker = spare
                    else:  # it wrote something after its last reply
                        self._end(spare)
            worker = self._forked() if worker is None else worker
        except (UserError, EOFError, OSError) as error:
            return _Reply(f"got no process: {type(error).__name__}: {error}", Fault.CRASH, lost=True)
        (reply,) = self._ask(worker, "call", wired, 1, self._source.limits.tool_seconds)
        self._spares += [worker] * (not worker.ended)
        return reply

    def _request(self, kind: str, *arguments: object, seconds: float | None = None) -> _Reply:
        return self._ask_object(kind, arguments, 1, seconds or self._source.limits.episode_seconds)[0]

    def _ask_object(self, kind: str, arguments: object, count: int, seconds: float) -> list[_Reply]:
        """Asks the object. When its process does not answer, it is gone."""
        if self._home is None or self._gone:
            return [_Reply(f"cannot be called: {self._gone or 'no reset'}", Fault.CRASH, lost=True)] * count
        replies = self._ask(self._home, kind, arguments, count, seconds)
        if lost := [reply.text for reply in replies if reply.lost]:
            self._gone = f"the environment is gone, because it {lost[-1]}"
        gone = "; the environment is gone"
        return [replace(reply, text=reply.text + gone) if reply.lost else reply for reply in replies]

    def _forked(self) -> Worker:
        worker = self._source.processes.fork()
        self._workers.append(worker)
        return worker

    def _end(self, worker: Worker) -> int:
        with suppress(ValueError):
            self._workers.remove(worker)
        return self._source.processes.end(worker)

    def _ask(self, worker: Worker, kind: str, arguments: object, count: int, seconds: float) -> list[_Reply]:
        """Sends a request; gives its replies in the order of the calls. Where one is lost, the process is killed."""
        worker.jobs += 1
        until = time.monotonic() + seconds
        replies: dict[int, _Reply] = {}
        fault, message = Fault.CRASH, pack((worker.jobs, kind, arguments))
        try:
            if not is_quiet(worker.channel):
                worker.channel.settimeout(0)
                raise ValueError if worker.channel.recv(1, socket.MSG_PEEK) else EOFError
            send_frame(worker.channel, message, seconds=seconds)
            while len(replies) < count:
                poll = select.poll()
                poll.register(worker.channel, select.POLLIN)
                while not poll.poll(1000 * min(_CHECK_SECONDS, max(0.0, until - time.monotonic()))):
                    if time.monotonic() >= until:
                        raise TimeoutError
                    if _descendants(worker.pid) > _MOST_PROCESSES:
                        raise ChildProcessError
                left = max(_CHECK_SECONDS, until - time.monotonic())
                reply = json.loads(receive_frame(worker.channel, seconds=left, most=_LONGEST_REPLY))
                if reply["request"] != worker.jobs:
                    raise ValueError
                replies[range(count)[reply["place"]]] = _Reply.read(reply)
            return [replies[index] for index in range(count)]
        except TimeoutError:
            fault, why = Fault.TIMEOUT, f"took longer than {seconds:g} s"
        except ChildProcessError:
            why = f"started more than {_MOST_PROCESSES} processes"
        except (EOFError, OSError):
            why = cause_of_death(self._end(worker)).replace("crashed its process (SIGKILL)", _KILLED)
            why = "was stopped: the episode is closed" if self._closed else why
        except NOT_AS_EXPECTED:  # no worker's JSON
            why = "wrote into the connection of its process"
        self._end(worker)
        return [replies.get(index, _Reply(why, fault, lost=True)) for index in range(count)]


def _descendants(pid: int) -> int:
    """How many processes a process and its children have started, where Linux says so; at least, if over the limit."""
    waiting, count = [pid], 0
    while waiting and len(waiting) + count <= _MOST_PROCESSES + 1:
        count += 1
        with suppress(OSError):  # it has ended
            for listed in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
                waiting += map(int, listed.read_text().split())
    return count + len(waiting) - 1
