"""Processes that run a user's code: forked from a zygote that has loaded it, killed with all that they started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from grouprl.rewards.workers.frames import pack, receive_frame, send_frame
from grouprl.rewards.workers.zygote import Work, request
from grouprl.types import UserError

_LOADING_SECONDS = 60.0  # of one function; its file may import torch and load a model
# -P and the order of sys.path: a json.py in the working directory must not replace the standard library's.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from grouprl.rewards.workers.zygote import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)


@dataclass
class Worker:
    """A forked process."""

    pid: int
    channel: socket.socket
    jobs: int = 0  # that it has finished
    ended: bool = False


class WorkerProcesses:
    """A zygote and the workers that it forks.

    Args:
        work: what the zygote loads, and what its workers do.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._closed = False
        self._live: set[int] = set()
        self._zygote, self._control = self._started()

    @property
    def pids(self) -> list[int]:
        """The ids of the workers that are alive."""
        return list(self._live)

    def loaded(self) -> Any:
        """Waits until the zygote has loaded everything; returns what `work.load` gave.

        Raises:
            UserError: it cannot be loaded.
        """
        loading, reply = "a worker", dict[str, Any]()
        try:
            while reply.keys() <= {"loading"}:
                loading = reply.get("loading", loading)
                reply = json.loads(receive_frame(self._control, seconds=_LOADING_SECONDS))
        except (EOFError, OSError, ValueError, AttributeError) as error:
            raise UserError(
                f"{loading}: expected to be loaded within {_LOADING_SECONDS:g} s, got "
                f"{str(error) or 'a process that ended'}: read its output"
            ) from error
        if "error" in reply:
            raise UserError(str(reply["error"]))
        return reply["loaded"]

    def fork(self) -> Worker:
        """Starts a worker. Raises UserError, EOFError or OSError when none can be started."""
        with self._lock:
            try:
                return self._forked()
            except (EOFError, OSError):
                if self._closed:
                    raise
                # The zygote was killed or stopped, or cannot fork: start a new one, once.
                self._kill_zygote()
                self._control.close()
                self._live.clear()
                self._zygote, self._control = self._started()
                self.loaded()
                return self._forked()

    def end(self, worker: Worker) -> int:
        """Kills a worker and all its children; returns its wait status."""
        if worker.ended:
            return signal.SIGKILL
        worker.ended = True
        worker.channel.close()
        with self._lock:
            self._live.discard(worker.pid)
            try:
                return request(self._control, worker.pid)
            except (EOFError, OSError):
                self._zygote.kill()  # a late answer could be taken for that of another request
                return signal.SIGKILL

    def close(self) -> None:
        """Kills every process."""
        self._closed = True
        self._control.close()  # the zygote then ends and kills its workers
        with suppress(subprocess.TimeoutExpired):
            self._zygote.wait(2)
        self._kill_zygote()

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        path = json.dumps(sorted(map(str, sys.path), key=lambda path: path == ""))
        with theirs:
            command = [sys.executable, "-P", "-c", _START, path, str(theirs.fileno()), str(os.getpid())]
            # A session of its own, so that Ctrl-C in the terminal reaches the run alone, which stops in order.
            zygote = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        with suppress(OSError):  # the process ended at once: `loaded` reports it
            send_frame(ours, pack(self._work))
        return zygote, ours

    def _kill_zygote(self) -> None:
        self._zygote.kill()
        with suppress(subprocess.TimeoutExpired):  # a process inside the kernel ends when it leaves it
            self._zygote.wait(5)

    def _forked(self) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = request(self._control, fd=theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._live.add(pid)
        return Worker(pid, ours)


def cause_of_death(status: int) -> str:
    """What a wait status says, as a predicate."""
    if not os.WIFSIGNALED(status):
        return f"ended its process with code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    names = {member.value: member.name for member in signal.Signals}
    return f"crashed its process ({names.get(number, f'signal {number}')})"
