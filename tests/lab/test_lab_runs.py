"""What the lab finds below its root, and what it never follows out of it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from grouprl.lab.app import create_app
from grouprl.lab.report.run_data import thinned
from grouprl.lab.runs import NoSuchRun, Runs
from grouprl.record.layout import RunDirectory
from grouprl.record.write import RunRecord
from grouprl.types import StepRecord
from lab_runs import FULL_CONFIG


def recorded(directory: Path, steps: int, config: str = FULL_CONFIG) -> Path:
    with RunRecord.create(directory, config) as record:
        for step in range(1, steps + 1):
            row = {"reward": step / 4, "completion_tokens": 100 * step, "time/total": 0.5, "tokens_per_second": 200.0}
            record.step(StepRecord(step, row, [], [], []))
        record.evaluation(0, {"greedy_accuracy": 0.25})
        if steps == 3:
            record.summary({"after": {"greedy_accuracy": 0.75}, "train_seconds": 1.5, "steps": 3})
    return directory


HOLDING = """
import sys
from pathlib import Path
from grouprl.record.layout import lock_directory
lock_directory(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    recorded(root / "one", 3)
    recorded(root / "comparison" / "grpo-seed0", 2)
    (root / "no-run").mkdir()
    return root


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(create_app(root)) as client:
        yield client


def test_the_list_of_runs(client: TestClient):
    found = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    assert set(found) == {"one", "comparison~grpo-seed0"}
    one = found["one"]
    assert (one["status"], one["step"], one["steps"], one["reward"]) == ("finished", 3, 3, 0.75)
    assert (one["algorithm"], one["model"], one["task"], one["seed"]) == ("grpo", "abacus", "word_problems", 4)
    assert (one["greedy_before"], one["greedy_after"], one["seconds"]) == (0.25, 0.75, 1.5)
    assert one["sparks"]["reward"] == [0.25, 0.5, 0.75]
    assert found["comparison~grpo-seed0"]["status"] == "stopped"


def test_a_run_is_listed_by_what_measures_it(root: Path, client: TestClient):
    """By its reward where evaluations hold no accuracy, and where it says so at its end."""
    for name, row, said in (
        ("own", {"reward": 0.1}, {"measure": "reward", "after": {"reward": 0.8}}),
        ("going", {"reward": 0.1}, {}),
        ("asked", {"reward": 0.1, "greedy_accuracy": 0.0}, {"measure": "reward", "after": {"reward": 0.8}}),
        ("solved", {"reward": 0.1, "greedy_accuracy": 0.2}, {"measure": "greedy_accuracy"}),
    ):
        with RunRecord.create(root / name, FULL_CONFIG) as record:
            record.evaluation(0, row)
            record.evaluation(1, {"problems": 4})  # all rewards invalid
            if said:
                record.summary({"steps": 3, **said})
    found = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    measures = {name: found[name]["measure"] for name in ("own", "going", "asked", "solved", "one")}
    assert measures == {
        "own": "reward", "going": "reward", "asked": "reward", "solved": "greedy_accuracy", "one": "greedy_accuracy",
    }  # fmt: skip
    assert (found["own"]["reward_before"], found["own"]["reward_after"]) == (0.1, 0.8)
    assert (found["going"]["reward_before"], found["going"]["reward_after"]) == (0.1, None)


def test_figures_come_with_the_tokens_and_seconds_so_far(client: TestClient):
    assert client.get("/api/runs/one/series").json() == {
        "step": [1, 2, 3],
        "tokens": [100, 300, 600],
        "seconds": [0.5, 1.0, 1.5],
        "columns": {
            "reward": [0.25, 0.5, 0.75],
            "completion_tokens": [100, 200, 300],
            "time/total": [0.5, 0.5, 0.5],
            "tokens_per_second": [200.0, 200.0, 200.0],
        },
    }


def test_a_run_is_running_while_a_process_has_its_lock(root: Path):
    held = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(root / "one")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert held.stdout is not None
    held.stdout.readline()
    assert RunDirectory(root / "one").holder() == held.pid
    assert Runs(root).overview(root / "one")["status"] == "running"
    held.communicate()
    assert RunDirectory(root / "one").holder() is None


def test_asking_for_the_lock_does_not_keep_a_run_from_starting(root: Path):
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            RunDirectory(root / "one").holder()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(50):
            RunRecord.reopen(root / "one", 2).close()
    finally:
        stop.set()
        asking.join()


def test_a_growing_file_is_read_on(root: Path):
    runs, metrics = Runs(root), root / "one" / "metrics.jsonl"
    assert len(runs.metrics(root / "one")) == 3
    with metrics.open("a") as file:
        file.write('{"step": 4, "completion_tokens": 7}\n{"step": 5, "comple')
    rows = runs.metrics(root / "one")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["tokens"] == 607
    with metrics.open("a") as file:
        file.write('tion_tokens": 1}\n')
    assert runs.metrics(root / "one")[-1]["tokens"] == 608


def test_a_resumed_run_forgets_the_steps_that_it_makes_again(root: Path):
    runs = Runs(root)
    assert len(runs.metrics(root / "one")) == 3
    RunRecord.reopen(root / "one", 1).close()
    assert [row["step"] for row in runs.metrics(root / "one")] == [1]


@pytest.mark.parametrize(
    "run",
    [
        "",
        ".",
        "..",
        "~",
        "one~..",
        "..~runs~one",
        "../runs",
        "one/..",
        "/etc",
        "one\\..",
        "one\0",
        "no-run",
        "two",
        "a~b~c",
    ],
)
def test_no_run_lies_outside_the_root(root: Path, client: TestClient, run: str):
    with pytest.raises(NoSuchRun, match="expected a run below"):
        Runs(root).folder(run)
    for path in ("series", "events") if run else ():
        assert client.get(f"/api/runs/{quote(run, safe='')}/{path}").status_code == 404


def test_links_out_of_the_root_are_not_followed(root: Path, tmp_path: Path, client: TestClient):
    secret = recorded(tmp_path / "secret", 1)
    (root / "linked").symlink_to(secret)
    inside = recorded(root / "inside", 1)
    (inside / "summary.json").symlink_to(secret / "config.yaml")
    circle = recorded(root / "circle", 1)
    (circle / "plots").symlink_to(circle / "plots")
    assert {run["id"] for run in client.get("/api/runs").json()["runs"]} == {"one", "comparison~grpo-seed0"}
    for run in ("linked", "inside", "circle"):
        assert client.get(f"/api/runs/{run}").status_code == 404


def test_a_broken_run_does_not_hide_the_others(root: Path, client: TestClient):
    (root / "one" / "metrics.jsonl").write_text("nonsense\n")
    (root / "yaml").mkdir()
    (root / "yaml" / "config.yaml").write_text("a: [")
    found = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    assert [found[run]["status"] for run in ("one", "yaml", "comparison~grpo-seed0")] == ["broken", "broken", "stopped"]
    assert "metrics.jsonl:1: expected JSON, got 'nonsense'" in found["one"]["error"]
    assert client.get("/api/runs/one").status_code == 400


@pytest.mark.parametrize("count", [0, 1, 59, 60, 61, 1000])
def test_thinned(count: int):
    shown = thinned([float(n) for n in range(count)], 60)
    assert len(shown) == min(count, 60)
    assert shown == sorted(set(shown))
    assert shown[:1] + shown[-1:] == ([0.0, count - 1.0] if count else [])


def events(app: Starlette, path: str, *, until: str) -> list[tuple[str, Any]]:
    """The events of a stream, until one of this name has come."""
    found: list[tuple[str, Any]] = []
    location, _, query = path.partition("?")

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            await anyio.sleep_forever()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            for part in message.get("body", b"").decode().split("\n\n"):
                lines = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
                if "event" in lines:
                    found.append((lines["event"], json.loads(lines["data"])))
            if found and found[-1][0] == until:
                scope.cancel()

        request = {
            "type": "http", "method": "GET", "path": location, "raw_path": location.encode(), "headers": [],
            "query_string": query.encode(), "root_path": "", "scheme": "http", "server": ("127.0.0.1", 1),
        }  # fmt: skip
        with anyio.move_on_after(20), anyio.CancelScope() as scope:
            await app(request, receive, send)  # type: ignore[arg-type]

    anyio.run(run)
    return found


def test_events_bring_what_is_there(root: Path):
    stream = events(create_app(root), "/api/runs/one/events?after=2", until="evaluations")
    assert [name for name, _ in stream] == ["step", "status", "evaluations"]
    assert stream[0][1]["tokens"] == 600
    assert stream[1][1] == {"status": "finished"}
    assert stream[2][1]["evaluations"][0]["greedy_accuracy"] == 0.25


def test_events_bring_what_comes_later(root: Path):
    def write() -> None:
        with (root / "one" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "reward": 9.0}\n')

    later = threading.Timer(1.0, write)
    later.start()
    stream = events(create_app(root), "/api/runs/one/events?after=3", until="step")
    later.join()
    assert [name for name, _ in stream] == ["status", "evaluations", "step"]
    assert (stream[-1][1]["step"], stream[-1][1]["reward"]) == (4, 9.0)


def test_events_say_when_a_run_went_back(root: Path):
    stream = events(create_app(root), "/api/runs/one/events?after=7", until="evaluations")
    assert [name for name, _ in stream] == ["restart", "step", "step", "step", "status", "evaluations"]


def test_the_status_file_may_be_missing(root: Path):
    os.unlink(root / "one" / "run.lock")
    assert Runs(root).overview(root / "one")["status"] == "finished"
