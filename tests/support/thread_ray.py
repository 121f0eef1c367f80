"""In Ray's place: actors are threads of this process, one job at a time, and what reaches them is a copy by pickle.

A cluster of Ray's own takes seconds to start. `tests/ranks/test_cluster.py` has that, with actors that are killed.
"""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import cloudpickle
import pytest


@dataclass(frozen=True)
class Stored:
    """A reference to an object in the store, which every reader unpickles for itself."""

    content: bytes


class Method:
    def __init__(self, actor: Any, name: str, turns: ThreadPoolExecutor) -> None:
        self._actor, self._name, self._turns = actor, name, turns

    def remote(self, *given: Any) -> Future[Any]:
        content = cloudpickle.dumps(given)

        def call() -> Any:
            result = getattr(self._actor, self._name)(*pickle.loads(content))
            # A pool kills the process that an actor names, which is this one.
            return (0, *result[1:]) if self._name == "describe" else result

        return self._turns.submit(call)


class Actor:
    """It is made at once: transformers loads wrong models in two threads."""

    def __init__(self, kind: Any, given: tuple[Any, ...], turns: ThreadPoolExecutor) -> None:
        actor = kind(*pickle.loads(cloudpickle.dumps(given)))
        self.describe, self.do = Method(actor, "describe", turns), Method(actor, "do", turns)


class ThreadRay(ModuleType):
    """What `grouprl.engines` uses of the module `ray`."""

    __version__ = "2.60.0"
    exceptions = MagicMock(RayActorError=type("RayActorError", (Exception,), {}))

    def __init__(self) -> None:
        super().__init__("ray")
        self._raylet = self.job_config = self.init = self.shutdown = self.kill = MagicMock()
        self._turns = ThreadPoolExecutor(1)  # one thread for all actors: torch's settings are of the whole process

    def put(self, value: Any) -> Stored:
        return Stored(cloudpickle.dumps(value))

    def get(self, reference: Stored | Future[Any], timeout: float | None = None) -> Any:
        return pickle.loads(reference.content) if isinstance(reference, Stored) else reference.result(timeout)

    def wait(self, references: list[Future[Any]], timeout: float) -> tuple[list[Future[Any]], list[Future[Any]]]:
        done, waiting = wait(references, timeout, return_when=FIRST_COMPLETED)
        return [*done], [*waiting]

    def remote(self, kind: Any) -> Any:
        options = MagicMock()
        options.options.return_value.remote = lambda *given: Actor(kind, given, self._turns)
        return options


@pytest.fixture
def thread_ray(monkeypatch: pytest.MonkeyPatch) -> ThreadRay:
    ray = ThreadRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray
