"""Samplers and scorers on a Ray cluster: actors are killed and stopped at random, and nothing is lost or repeated."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl.config.run import ClusterConfig, RunConfig, load_config
from grouprl.curriculum.order import UniformOrder
from grouprl.curriculum.pass_rates import PassRates
from grouprl.distributed import Ranks
from grouprl.distributed.actors import ActorPool
from grouprl.distributed.cluster import Cluster, open_cluster
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, requests
from grouprl.rollout.remote import _parts
from grouprl.tasks import load_task
from grouprl.types import UserError
from small_runs import ROWS, assert_same_run, grouprl, metrics, rollouts, small_settings, write_rows

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
LETTERS = Path(__file__).parents[1] / "support" / "letter_rewards.py"


def ray_processes() -> list[int]:
    """Processes of Ray that this test's process started, and theirs."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    words = ("ray::", "raylet", "gcs_server")
    return [int(line.split()[0]) for line in listed.splitlines() if any(word in line for word in words)]


def test_requests_are_divided_among_samplers_and_each_is_asked_for_once():
    for count, samplers, max_rows in ((16, 2, 256), (5, 8, 256), (7, 2, 8), (1, 1, 1)):
        parts = _parts([4] * count, samplers, max_rows)
        assert sorted(place for part in parts for place in part) == list(range(count))
        assert all(parts)
        assert len(parts) >= min(samplers, count)
    assert max(map(len, _parts([4] * 7, 2, 8))) == 2  # rows of a sampler: 8 of 4 completions each


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("cluster.samplers=2", "cluster.samplers: expected backend=ray with it, got none"),
        ("cluster.backend=slurm", "cluster.backend: expected 'none' or 'ray', got 'slurm'"),
    ],
)
def test_settings_of_a_cluster_that_is_none_are_refused(tmp_path: Path, setting: str, said: str):
    ended = grouprl("train", "demo", f"runs_dir={tmp_path}", setting)
    assert ended.code == 2
    assert said in ended.text


def test_several_ranks_need_the_address_of_a_cluster():
    opened = open_cluster(ClusterConfig(backend="ray"), print, Ranks(world=2))
    with pytest.raises(UserError, match="expected the address of a cluster for 2 ranks, got none"), opened:
        pass


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


def broken() -> Any:
    raise UserError("expected a model, got none")


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cluster(said: list[str]) -> Iterator[Cluster]:
    with open_cluster(ClusterConfig(backend="ray", samplers=3), said.append, Ranks()) as opened:
        opened.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which actors cannot import
        yield opened
    until = time.monotonic() + 20
    while ray_processes() and time.monotonic() < until:
        time.sleep(0.1)
    assert ray_processes() == []


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_job_that_ends_every_actor_ends_the_run_with_its_reason(cluster: Cluster, tmp_path: Path):
    squares = partial(Squares, str(tmp_path))
    lost = pytest.raises(UserError, match="expected a sampler that answers, lost 4 one after another")
    with ActorPool[Any, int](cluster, "sampler", squares, count=1, seconds=5.0) as pool, lost:
        pool.submit("deadly").result(120)
    refused = pytest.raises(UserError, match=r"scorer 0 on .*: expected a model, got none")
    with ActorPool[Any, int](cluster, "scorer", broken, count=1, seconds=5.0) as pool, refused:
        pool.submit(1).result(60)


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> list[str]:
    folder = tmp_path_factory.mktemp("cluster")
    rows = write_rows(folder / "rows.jsonl", ROWS)
    given = ["train", f"--model={tiny}", "--reward", f"{LETTERS}:letters", "task=jsonl", f"task.path={rows}"]
    rollout = {"problems_per_step": 4, "group_size": 4, "max_tokens": 8}
    settings = small_settings(folder, steps=8, rollout=rollout, checkpoint={"every": 2, "keep": 9})
    assert grouprl(*given, *settings, "name=alone").code == 0
    return [*given, *settings]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapter"])
def test_a_run_whose_actors_are_killed_is_the_run_of_one_process(place: list[str], lora: bool):
    """Weights, optimizer, metrics but for times, rollouts and evaluations."""
    runs = Path(next(one for one in place if one.startswith("runs_dir=")).partition("=")[2].strip('"'))
    more = ["model.lora={rank: 2}"] if lora else []
    if lora:
        assert grouprl(*place, *more, "name=adapter-alone").code == 0
    name = "adapter-cluster" if lora else "cluster"
    on_ray = ["cluster.backend=ray", "cluster.samplers=2", "cluster.scorers=2", "cluster.seconds=4"]
    command = [sys.executable, "-m", "grouprl", *place, *more, *on_ray, f"name={name}"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    over, struck = threading.Event(), list[str]()

    def strike() -> None:
        signals = iter((signal.SIGKILL, signal.SIGSTOP))
        seen = 0
        while not over.wait(0.02):
            steps = len(list((runs / name / "checkpoints").glob("step-*")))
            if steps > seen and (actors := actor_processes()):
                seen = steps
                with suppress(StopIteration, ProcessLookupError):
                    sent = next(signals)
                    os.kill(random.Random(seen).choice(actors), sent)
                    struck.append(sent.name)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        text, _ = run.communicate(timeout=200)
    finally:
        over.set()
        thread.join()
        run.kill()
    assert run.returncode == 0, text
    assert struck == ["SIGKILL", "SIGSTOP"]
    assert text.count("it is replaced") >= 2, text
    if not lora:
        assert_same_run(runs / "alone", runs / name, step=8)
    else:
        left, right = runs / "adapter-alone", runs / name
        assert metrics(left) == metrics(right)
        assert rollouts(left) == rollouts(right)
        for file in ("adapter_model.safetensors", "trainer/optimizer.safetensors"):
            last = Path("checkpoints") / "step-000008" / file
            assert (left / last).read_bytes() == (right / last).read_bytes()
    assert ray_processes() == []


def actor_processes() -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "ray::_Actor" in line]


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_one_sentence(place: list[str]):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    ended = grouprl(*place, "name=nowhere", "cluster.backend=ray", f"cluster.address=127.0.0.1:{port}")
    assert ended.code == 2
    assert "cluster.address: expected a Ray 2" in ended.text
    assert "Traceback" not in ended.text
    assert len(ended.err.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def late(place: list[str]) -> list[str]:
    """A run whose groups are sampled while the learner updates."""
    late = ["cluster.backend=ray", "cluster.samplers=2", "cluster.max_staleness=1", "algorithm.correction=truncate"]
    return [*place, *late]


@pytest.mark.slow
def test_a_run_that_samples_ahead_is_one_version_behind_and_resumes_exactly(late: list[str], tiny: Path):
    runs = Path(next(one for one in late if one.startswith("runs_dir=")).partition("=")[2].strip('"'))
    assert grouprl(*late, "name=whole").code == 0
    assert [row["staleness"] for row in metrics(runs / "whole")] == [0] + [1] * 7

    command = [sys.executable, "-m", "grouprl", *late, "name=broken"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 120
    while not (runs / "broken" / "checkpoints" / "step-000004").exists() and time.monotonic() < until:
        time.sleep(0.01)
    run.kill()
    run.wait(10)
    assert grouprl(*late, "name=broken", "--resume").code == 0
    assert_same_run(runs / "whole", runs / "broken", step=8)

    # The weights after step 2 sampled step 4; an engine of this process with those weights writes the same.
    policy = load_model(str(runs / "whole" / "checkpoints" / "step-000002"), device=torch.device("cpu"))
    config = load_config(RunConfig, [runs / "whole" / "config.yaml"], [])
    task = load_task(**config.task.model_dump())
    visits = UniformOrder(4, config.seed).visits(task.problems("train"), step=4, rates=PassRates())
    tokenizer = load_tokenizer(str(tiny))
    engine = NativeEngine(policy, tokenizer, seed=config.seed, max_rows=256)
    groups = engine.generate(requests(visits, tokenizer, completions=4, longest_prompt=500), config.rollout.sampling)
    query = "SELECT text FROM completions WHERE step = 4 ORDER BY rowid"
    recorded = [text for (text,) in rollouts(runs / "whole", query)]
    assert recorded == [one.text for group in groups for one in group.completions]


def test_sampling_ahead_needs_a_correction_and_problems_that_are_known(tmp_path: Path):
    ahead = ["train", "demo", f"runs_dir={tmp_path}", "cluster.backend=ray", "cluster.max_staleness=1"]
    assert "algorithm.correction: expected truncate or mask with max_staleness=1" in grouprl(*ahead).text
    edge = [*ahead, "algorithm.correction=mask", "rollout.curriculum.order=edge"]
    assert "rollout.curriculum.order: expected uniform with max_staleness=1" in grouprl(*edge).text
