"""What the lab must not do to runs, to other processes and with files from elsewhere, whatever it finds in a folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from grouprl.files import read_json
from grouprl.lab.app import create_app
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_run
from grouprl.record.write import RunRecord
from lab_processes import QUICK, ended, started
from lab_runs import CONFIG, Made, add_step, make_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    root.mkdir()
    with TestClient(create_app(root)) as client:
        yield client


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def locked(folder: Path, process: str) -> int:
    """This process has the run's lock, and the file names another as its holder."""
    handle = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.ftruncate(handle, 0)  # or what is left of this process's own number would follow
    os.write(handle, process.encode())
    return handle


@pytest.mark.parametrize("said", ["the bystander", "1", "0", "99999999", "9" * 23])
def test_only_the_process_that_has_the_lock_is_stopped(
    client: TestClient, root: Path, bystander: subprocess.Popen[bytes], said: str
):
    folder = make_run(root / "run", [Made((1.0, 0.0))])
    handle = locked(folder, str(bystander.pid) if said == "the bystander" else said)
    answer = client.post("/api/runs/run/stop", json={})
    os.close(handle)
    assert (answer.status_code, "which this lab cannot stop" in answer.json()["error"]) == (400, True)
    time.sleep(0.2)
    assert bystander.poll() is None


@pytest.mark.slow
def test_a_run_that_was_asked_twice_to_stop_saves_all_the_same(client: TestClient, root: Path):
    started(client, "run", "steps=100000", "checkpoint.every=100000")
    until = time.monotonic() + 60
    while not read_run(root / "run").metrics:
        assert time.monotonic() < until
        time.sleep(0.05)
    answers = [client.post("/api/runs/run/stop", json={}) for _ in range(2)]
    assert answers[0].status_code == 200
    assert answers[1].json()["error"] in ("run is stopping: it finishes its step and saves", "run is not running")
    ended(root / "run")
    last = read_run(root / "run").metrics[-1]["step"]
    assert (root / "run" / "checkpoints" / f"step-{last:06d}").is_dir()
    assert read_json(root / "run" / "summary.json")["steps"] == last


@pytest.mark.slow
def test_of_two_starts_of_one_name_one_is_the_run(client: TestClient, root: Path):
    bodies = [{"recipe": "demo", "name": "run", "changes": [*QUICK, "steps=1", f"seed={seed}"]} for seed in (5, 6)]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda body: client.post("/api/runs", json=body), bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 400]
    ended(root / "run")
    (won,) = [seed for seed, answer in zip((5, 6), answers, strict=True) if answer.status_code == 200]
    assert f"seed: {won}" in (root / "run" / "config.yaml").read_text()


@pytest.mark.slow
def test_a_run_that_ended_is_no_zombie(client: TestClient, root: Path):
    started(client, "run", "steps=1")
    process = RunDirectory(root / "run").holder()
    ended(root / "run")
    until = time.monotonic() + 20
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("place", ["step-000001", "step-000001/model/extra.txt"])
def test_a_fork_brings_nothing_in_from_elsewhere(client: TestClient, root: Path, tmp_path: Path, place: str):
    folder = make_run(root / "run", [Made((1.0, 0.0))])
    (tmp_path / "outside" / "trainer").mkdir(parents=True)
    (tmp_path / "outside" / "trainer" / "state.json").write_text("{}")
    path = folder / "checkpoints" / place
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "outside")
    (folder / "checkpoints" / "step-000001" / "trainer").mkdir(exist_ok=True)
    (folder / "checkpoints" / "step-000001" / "trainer" / "state.json").write_text("{}")
    (folder / "config.yaml").write_text((Path(__file__).parents[2] / "src/grouprl/recipes/demo.yaml").read_text())
    answer = client.post("/api/runs/run/fork", json={"step": 1, "name": "new"})
    assert (answer.status_code, "found a link" in answer.json()["error"]) == (400, True)
    assert not list(root.glob("*new*"))


def test_deep_brackets_are_no_body(client: TestClient):
    answer = client.post("/api/runs", content=b"[" * 60_000, headers={"content-type": "application/json"})
    assert (answer.status_code, "expected a JSON object" in answer.json()["error"]) == (400, True)


def test_a_run_that_is_read_when_it_ends_leaves_one_plain_file(tmp_path: Path):
    """Or its last steps would stay in a second file, and be missing from a copy of the first."""
    record = RunRecord.create(tmp_path / "run", CONFIG)
    for step in range(1, 30):
        add_step(record, step, [Made((1.0, 0.0))] * 4)
    reader = sqlite3.connect(f"file:{tmp_path}/run/rollouts.sqlite?mode=ro", uri=True, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM completions").fetchall()
    threading.Timer(1.5, reader.close).start()
    record.close()
    assert not (tmp_path / "run" / "rollouts.sqlite-wal").exists()
    shutil.copy(tmp_path / "run" / "rollouts.sqlite", tmp_path / "copy.sqlite")
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as database:
        assert database.execute("SELECT COUNT(*) FROM completions").fetchone() == (29 * 8,)


@pytest.mark.slow
def test_a_run_waits_for_who_reads_it(tmp_path: Path):
    """A finished run has no WAL, so that a reader holds up a resume."""
    folder = make_run(tmp_path / "run", [Made((1.0, 0.0))])
    reader = sqlite3.connect(folder / "rollouts.sqlite", check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM completions").fetchall()
    threading.Timer(2.0, reader.rollback).start()
    with RunRecord.reopen(folder, 1) as record:
        add_step(record, 2, [Made((0.5, 0.0))])
    reader.close()
    assert len(read_run(folder).metrics) == 2
