"""Samplers and scorers on a Ray cluster: actors are killed and stopped at random, and nothing is lost or repeated."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from grouprl.config.run import ClusterConfig
from grouprl.engines.ray_cluster import open_cluster
from grouprl.engines.ray_samplers import _parts
from grouprl.models.load import load_model, load_tokenizer
from grouprl.ranks import Ranks
from grouprl.record.read import read_rollouts
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Sampling, UserError
from processes import wait_for
from small_runs import ROWS, assert_same_run, grouprl, metrics, rollouts, small_settings, write_rows

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
Processes = Callable[[], dict[int, str]]
LETTERS = Path(__file__).parents[1] / "support" / "letter_rewards.py"


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


def folder_of(place: list[str]) -> Path:
    """Where its runs are."""
    return Path(next(one for one in place if one.startswith("runs_dir=")).partition("=")[2].strip('"'))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> list[str]:
    folder = tmp_path_factory.mktemp("cluster")
    rows = write_rows(folder / "rows.jsonl", ROWS)
    given = ["train", f"--model={tiny}", "--reward", f"{LETTERS}:letters", "task=jsonl", f"task.path={rows}"]
    rollout = {"problems_per_step": 4, "group_size": 4, "max_tokens": 8}
    settings = small_settings(folder, steps=8, rollout=rollout, checkpoint={"every": 2, "keep": 9})
    assert grouprl(*given, *settings, "name=alone").code == 0
    return [*given, *settings]


def strike(run: subprocess.Popen[str], checkpoints: Path, signals: Sequence[int], processes: Processes) -> int:
    """Sends each signal to a random actor that has started, after one more checkpoint; returns how many it sent."""
    chance, struck = random.Random(0), list[int]()
    for sent in signals:
        while run.poll() is None:
            if len(list(checkpoints.glob("step-*"))) > len(struck):
                run.send_signal(signal.SIGSTOP)  # else it may be over before its actors are found
                try:
                    started = [pid for pid, command in processes().items() if "ray::_Actor" in command]
                    ready = [pid for pid in started if "__init__" not in processes().get(pid, "__init__")]
                    if left := [pid for pid in ready if pid not in struck]:
                        struck.append(chance.choice(left))
                        os.kill(struck[-1], sent)
                        break
                finally:
                    run.send_signal(signal.SIGCONT)
            time.sleep(0.02)
    return len(struck)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapter"])
def test_a_run_whose_actors_are_killed_is_the_run_of_one_process(place: list[str], lora: bool, processes: Processes):
    """Weights, optimizer, metrics but for times, rollouts and evaluations."""
    runs, more, count, signals = folder_of(place), list[str](), 2, [signal.SIGKILL, signal.SIGSTOP]
    if lora:
        more, count, signals = ["model.lora={rank: 2}"], 1, [signal.SIGKILL]
        assert grouprl(*place, *more, "name=adapter-alone").code == 0
    name = "adapter-cluster" if lora else "cluster"
    on_ray = ["cluster.backend=ray", f"cluster.samplers={count}", f"cluster.scorers={count}", "cluster.seconds=4"]
    command = [sys.executable, "-m", "grouprl", *place, *more, *on_ray, f"name={name}"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        struck = strike(run, runs / name / "checkpoints", signals, processes)
        text, _ = run.communicate(timeout=200)
    finally:
        run.kill()
    assert run.returncode == 0, text
    assert struck == len(signals)
    assert text.count("it is replaced") >= len(signals), text
    if not lora:
        assert_same_run(runs / "alone", runs / name, step=8)
    else:
        left, right = runs / "adapter-alone", runs / name
        assert metrics(left) == metrics(right)
        assert rollouts(left) == rollouts(right)
        for file in ("adapter_model.safetensors", "trainer/optimizer.safetensors"):
            last = Path("checkpoints") / "step-000008" / file
            assert (left / last).read_bytes() == (right / last).read_bytes()


@pytest.mark.slow
def test_a_run_that_replaces_dropped_groups_is_the_run_of_one_process(place: list[str]):
    runs = Path(next(one for one in place if one.startswith("runs_dir=")).partition("=")[2].strip('"'))
    dapo = ["algorithm=dapo", "algorithm.refills=4", "algorithm.drop_below=0.3", "steps=3"]
    assert grouprl(*place, *dapo, "name=dapo-alone").code == 0
    on_ray = ["cluster.backend=ray", "cluster.samplers=2", "cluster.scorers=1"]
    assert grouprl(*place, *dapo, *on_ray, "name=dapo-cluster").code == 0
    assert_same_run(runs / "dapo-alone", runs / "dapo-cluster", step=3)
    assert any(row["groups/sampled"] > row["groups/kept"] for row in metrics(runs / "dapo-alone"))


@pytest.mark.slow
def test_a_reward_of_the_whole_batch_is_that_of_one_process(place: list[str], tmp_path: Path):
    runs, mine = folder_of(place), tmp_path / "mine.py"
    mine.write_text(
        "def rank(completions, log_metric, **_):\n"
        "    log_metric('completions', len(completions))\n"
        "    return [sum(other < own for other in completions) / len(completions) for own in completions]\n"
    )
    whole = ["--reward", f"{mine}:rank", "rewards.1.scope=batch", "steps=2"]
    assert grouprl(*place, *whole, "name=batch-alone").code == 0
    on_ray = ["cluster.backend=ray", "cluster.samplers=2", "cluster.scorers=2"]
    assert grouprl(*place, *whole, *on_ray, "name=batch-cluster").code == 0
    assert_same_run(runs / "batch-alone", runs / "batch-cluster", step=2)
    assert [row["reward_logs/completions"] for row in metrics(runs / "batch-cluster")] == [16.0, 16.0]


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


@pytest.mark.slow
def test_a_cluster_that_does_not_start_here_is_one_sentence(place: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_TMPDIR", f"/tmp/{'long' * 30}")  # the path of a socket has at most 107 bytes
    ended = grouprl(*place, "name=nowhere", "cluster.backend=ray")
    assert ended.code == 2
    assert "cluster.backend=ray: expected Ray to start here, got: " in ended.text
    assert "RAY_TMPDIR" in ended.text
    assert len(ended.err.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def late(place: list[str]) -> list[str]:
    """A run whose groups are sampled while the learner updates."""
    late = ["cluster.backend=ray", "cluster.max_staleness=1", "algorithm.correction=truncate", "steps=6"]
    return [*place, *late]


@pytest.mark.slow
def test_a_run_that_samples_ahead_is_one_version_behind_and_resumes_exactly(
    late: list[str], tiny: Path, processes: Processes
):
    runs = folder_of(late)
    assert grouprl(*late, "name=whole").code == 0
    assert [row["staleness"] for row in metrics(runs / "whole")] == [0] + [1] * 5

    command = [sys.executable, "-m", "grouprl", *late, "name=broken"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for((runs / "broken" / "checkpoints" / "step-000004").exists)
    run.kill()
    run.wait(10)
    assert grouprl(*late, "name=broken", "--resume").code == 0
    assert_same_run(runs / "whole", runs / "broken", step=6)

    # The weights after step 2 sampled step 4; an engine of this process with those weights writes the same.
    policy = load_model(str(runs / "whole" / "checkpoints" / "step-000002"), device=torch.device("cpu"))
    recorded = [scored.group for scored in read_rollouts(runs / "whole", step=4)]
    engine = NativeEngine(policy, load_tokenizer(str(tiny)), seed=0, max_rows=256)
    requests = [Request(group.problem, group.prompt_ids, 4, "epoch 0") for group in recorded]
    for group, expected in zip(recorded, engine.generate(requests, Sampling(max_tokens=8)), strict=True):
        assert [one.token_ids for one in group.completions] == [one.token_ids for one in expected.completions]
    wait_for(lambda: not processes(), seconds=90)  # Ray's own agents look for a killed process for a minute


def test_sampling_ahead_needs_a_correction_and_problems_that_are_known(tmp_path: Path):
    ahead = ["train", "demo", f"runs_dir={tmp_path}", "cluster.backend=ray", "cluster.max_staleness=4"]
    assert "algorithm.correction: expected truncate or mask with cluster.max_staleness=4" in grouprl(*ahead).text
    edge = [*ahead, "algorithm.correction=mask", "rollout.curriculum.order=edge"]
    assert "rollout.curriculum.order: expected uniform with cluster.max_staleness=4" in grouprl(*edge).text
    for value in ("-1", "65", "1.5", "many"):
        said = grouprl(*ahead, f"cluster.max_staleness={value}").text
        assert re.search(rf"cluster.max_staleness: expected .*, got '?{value}", said), said
