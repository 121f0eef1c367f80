"""Jobs on the actors of a Ray cluster: actors are killed and stopped at random, and each job is answered once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import ClusterConfig
from grouprl.engines.ray_actors import ActorPool
from grouprl.engines.ray_cluster import Cluster, open_cluster
from grouprl.ranks import Ranks
from grouprl.types import UserError
from processes import nothing_left

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")]


class Squares:
    """In an actor: knows how often it was called."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __call__(self, job: Any) -> int:
        if job == "bad":
            raise UserError("expected a number, got bad")
        if job == "deadly":
            os._exit(3)
        time.sleep(0.1)
        (self.folder / f"{job}-{os.getpid()}").touch()
        return int(job) ** 2


def places() -> list[str]:
    return sys.path


def broken() -> Any:
    raise UserError("expected a model, got none")


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cluster(said: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """For the tests of this file, and no run of this process beside it: Ray connects a process once."""
    settings = ClusterConfig(backend="ray", samplers=3)
    current = tmp_path_factory.mktemp("current")
    with nothing_left(), chdir(current), open_cluster(settings, said.append, Ranks()) as opened:
        opened.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which actors cannot import
        yield opened


def test_jobs_survive_actors_that_are_killed_and_stopped(cluster: Cluster, said: list[str], tmp_path: Path):
    chance = random.Random(0)
    with ActorPool[Any, int](cluster, "sampler", partial(Squares, str(tmp_path)), count=3, seconds=2.0) as pool:
        assert pool.submit(3).result(60) == 9
        answers = [pool.submit(number) for number in range(200)]
        struck = set[int]()
        for sent in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
            time.sleep(chance.uniform(0.3, 0.8))
            until = time.monotonic() + 60  # an actor that replaces another takes seconds to start
            while not (left := [pid for pid, _ in pool.processes if pid not in struck]) and time.monotonic() < until:
                time.sleep(0.01)
            pid = chance.choice(left)
            struck.add(pid)
            os.kill(pid, sent)
        assert [answer.result(60) for answer in answers] == [number**2 for number in range(200)]
        assert sum("it is replaced" in text for text in said) == 3
        with pytest.raises(UserError, match="expected a number, got bad"):
            pool.submit("bad").result(60)
        assert pool.submit(5).result(60) == 25


def test_a_job_that_ends_every_actor_ends_the_run_with_its_reason(cluster: Cluster, tmp_path: Path):
    squares = partial(Squares, str(tmp_path))
    lost = pytest.raises(UserError, match="expected a sampler that answers, lost 4 one after another")
    with ActorPool[Any, int](cluster, "sampler", squares, count=1, seconds=5.0) as pool, lost:
        pool.submit("deadly").result(120)
    refused = pytest.raises(UserError, match=r"scorer 0 on .*: expected a model, got none")
    with ActorPool[Any, int](cluster, "scorer", broken, count=1, seconds=5.0) as pool, refused:
        pool.submit(1).result(60)


def test_the_current_folder_is_on_the_path_of_no_worker(cluster: Cluster):
    found = cluster.ray.get(cluster.ray.remote(places).remote())
    assert str(Path.cwd()) not in found


def test_a_cluster_that_is_started_here_takes_nobody_without_its_token(cluster: Cluster):
    address = cluster.ray.get_runtime_context().gcs_address
    program = "import sys, ray; ray.init(sys.argv[1], logging_level='error'); print('in')"
    with_token = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    for token, comes_in in ((with_token["RAY_AUTH_TOKEN"], True), ("0" * 64, False)):
        tried = subprocess.run(
            [sys.executable, "-c", program, address],
            env={**os.environ, "RAY_AUTH_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ("in" in tried.stdout) == comes_in, tried.stderr
