"""A run that is killed at any change to any file, or loses power there, ends as the run that nobody stopped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disk import Disk, compiled, read_log
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_rollouts
from small_runs import metrics, rollouts, tree

SUPPORT = Path(__file__).parents[1] / "support"
KILLS = int(os.environ.get("GROUPRL_KILLS", "9"))  # make chaos: 500, and as many losses of power / 5
SEED = int(os.environ.get("GROUPRL_KILLS_SEED", "0"))
TIMES = {"train_seconds", "total_seconds", "peak_rss_mib", "machine"}

Make = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def make(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes or resumes a run in a process of its own; gives exit status and number of changes."""
    library = compiled(tmp_path_factory.mktemp("disk"))
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    with subprocess.Popen(
        [sys.executable, SUPPORT / "killed_runs.py", library, tiny],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None

        def make(
            runs: Path,
            setting: str,
            *,
            kill_at: int = 0,
            log: Path | None = None,
            threads: int = 1,
            kernels: str = "on",
        ) -> tuple[int, int]:
            resume = (runs / "run" / "config.yaml").exists()
            asked: dict[str, Any] = {"runs": str(runs), "setting": setting, "resume": resume, "kill_at": kill_at}
            asked |= {"log": str(log or ""), "quiet": True, "threads": threads, "kernels": kernels}
            print(json.dumps(asked), file=server.stdin, flush=True)
            status, changes = json.loads(server.stdout.readline())
            return status, changes

        yield make
        server.stdin.close()


@pytest.fixture(scope="module")
def straight(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, int]]:
    """The run of a setting that nobody stopped, with its number of changes."""
    made: dict[str, tuple[Path, int]] = {}

    def run(setting: str) -> tuple[Path, int]:
        if setting not in made:
            runs = tmp_path_factory.mktemp(setting)
            status, changes = make(runs, setting)
            assert status == 0
            made[setting] = runs / "run", changes
        return made[setting]

    return run


@pytest.fixture(scope="module")
def logged(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder of a run that nobody stopped, and all its changes."""
    folder = tmp_path_factory.mktemp("logged")
    (folder / "runs").mkdir()
    assert make(folder / "runs", "grpo", log=folder / "log")[0] == 0
    return folder / "runs", list(read_log(folder / "log"))


def assert_survived(run: Path, whole: Path) -> None:
    """Everything in two run directories is the same, times and the page that shows them apart."""
    for step in range(1, 7):  # as a reader finds it, before anything else has opened the database
        assert read_rollouts(run, step) == read_rollouts(whole, step)
    assert metrics(run) == metrics(whole)
    for query in ("SELECT * FROM completions ORDER BY 1, 2, 3", "SELECT * FROM problems ORDER BY 1"):
        assert rollouts(run, query) == rollouts(whole, query)
    ours, theirs = content(run), content(whole)
    assert ours.keys() == theirs.keys()
    for name, found in ours.items():
        assert found == theirs[name], name


def content(run: Path) -> dict[str, Any]:
    """Files with the same bytes in every run of a configuration, and the JSON of others without times."""
    found: dict[str, Any] = {}
    for name, text in tree(run).items():
        if name.endswith(("state.json", "summary.json")):
            found[name] = {key: value for key, value in json.loads(text or b"").items() if key not in TIMES}
        elif not re.search(r"manifest.json|metrics.jsonl|report.html|config.yaml|sqlite", name):
            found[name] = text
    return found


def killed_again_and_again(
    make: Make, runs: Path, setting: str, whole: Path, changes: int, draw: random.Random, most: int
) -> int:
    """Kills a run before random changes, so often at most, until it has ended; gives the number of kills."""
    kills = 0
    while not RunDirectory(runs / "run").is_finished(6):
        at = draw.randint(1, changes) if kills < most else 0
        status, _ = make(runs, setting, kill_at=at)
        assert status in (0, -9), f"a run that dies before change {at} ended with {status}"
        kills += status != 0
    assert_survived(runs / "run", whole)
    return kills


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["grpo", "ppo", "moving"])
def test_a_run_that_is_killed_at_random_ends_as_if_nobody_had(
    make: Make, straight: Callable[[str], tuple[Path, int]], tmp_path: Path, setting: str
) -> None:
    whole, changes = straight(setting)
    draw, kills, run = random.Random(f"{SEED} {setting}"), 0, 0
    wanted = math.ceil(KILLS / 3)
    while kills < wanted:
        run += 1
        kills += killed_again_and_again(make, tmp_path / str(run), setting, whole, changes, draw, wanted - kills)
        shutil.rmtree(tmp_path / str(run))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kernels", "setting", "runs"),
    [
        ("on", "game", 4),
        ("on", "agent", 4),
        ("on", "tool", 4),
        ("off", "game", 3),
        ("off", "agent", 3),
        ("off", "tool", 2),
    ],
)
def test_episodes_end_in_the_same_bits_whoever_is_answered_when_and_killed(
    make: Make, tmp_path: Path, kernels: str, setting: str, runs: int
) -> None:
    """Runs with answers after random times, each killed twice, on one and on two threads: one SHA-256."""
    straight, draw = tmp_path / "straight", random.Random(f"{SEED} {setting} {kernels}")
    status, changes = make(straight, setting, kernels=kernels)
    assert status == 0
    assert max(row["episodes/turns"] for row in metrics(straight / "run")) > 1  # else nobody waits for an answer
    digests = {digest(straight / "run")}
    for number in range(runs if KILLS >= 100 else 1):  # 20 runs by `make chaos`
        folder, threads = tmp_path / str(number), 2 - number % 2
        # So early that a run is not over before its second kill.
        for kill_at in (draw.randint(1, changes // 2), draw.randint(1, changes // 4), 0):
            status, _ = make(folder, setting, kill_at=kill_at, threads=threads, kernels=kernels)
            assert status == (-9 if kill_at else 0)
        digests.add(digest(folder / "run"))
    assert len(digests) == 1


def digest(run: Path) -> str:
    """SHA-256 of the last weights, the optimizer's state and all log-probs."""
    columns = "step, group_index, completion_index, token_ids, logprobs, learner_logprobs"
    found = hashlib.sha256(repr(rollouts(run, f"SELECT {columns} FROM completions ORDER BY 1, 2, 3")).encode())
    for name in ("model.safetensors", "trainer/optimizer.safetensors"):
        found.update((run / "checkpoints" / "step-000002" / name).read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize("names_last", [False, True], ids=["nothing unsynced lasts", "names last, bytes do not"])
def test_a_run_that_loses_power_ends_as_if_it_had_not(
    make: Make, logged: tuple[Path, list[Any]], tmp_path: Path, names_last: bool
) -> None:
    runs, made = logged
    draw, resumed = random.Random(f"{SEED} power"), 0
    count = max(2, KILLS // 10)
    for at in [int(len(made) * (part + draw.random()) / count) for part in range(count)]:
        disk = Disk(runs.resolve())
        for change in made[:at]:
            disk.make(change)
        left = tmp_path / str(at)
        disk.lose_power(left, names_last=names_last)
        resumed += bool(RunDirectory(left / "run").checkpoints())
        if not RunDirectory(left / "run").is_finished(6):
            status, _ = make(left, "grpo")
            assert status == 0, f"after a loss of power before change {at}: {made[at]!r:.200}"
        assert_survived(left / "run", runs / "run")
        shutil.rmtree(left)
    assert resumed  # a disk that keeps nothing would prove nothing


def test_the_disk_of_this_test_is_the_real_one(logged: tuple[Path, list[Any]]) -> None:
    """Without a loss of power, the changes that were seen give every file that is there."""
    runs, made = logged
    disk = Disk(runs.resolve())
    for change in made:
        disk.make(change)
    assert disk.files() == {name: text for name, text in tree(runs).items() if text is not None}
