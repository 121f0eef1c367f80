"""What the lab finds below its root, and what it never follows out of it."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from typer.testing import CliRunner

from grouprl.cli import app as cli
from grouprl.lab.report.run_data import thinned
from grouprl.lab.runs import NoSuchRun, Runs
from grouprl.lab.server import create_app
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "runs"
    recorded(folder / "one", 3)
    recorded(folder / "comparison" / "grpo-seed0", 2)
    (folder / "no-run").mkdir()
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    refused = CliRunner().invoke(cli, ["lab", str(tmp_path / "rusn"), "--no-browser"])
    assert "expected a folder of runs, or a run, found no such folder: check the path" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


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
    after = {"after": {"reward": 0.8}}
    for name, row, said in (
        ("own", {"reward": 0.1}, {"measure": "reward", **after}),
        ("going", {"reward": 0.1}, {}),
        ("asked", {"reward": 0.1, "greedy_accuracy": 0.0}, {"measure": "reward", **after}),
        ("solved", {"reward": 0.1, "greedy_accuracy": 0.2}, {"measure": "greedy_accuracy"}),
    ):
        with RunRecord.create(root / name, FULL_CONFIG) as record:
            record.evaluation(0, row)
            record.evaluation(1, {"problems": 4})  # all rewards invalid
            if said:
                record.summary({"steps": 3, **said})
    found = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    assert {found[name]["measure"] for name in ("own", "going", "asked")} == {"reward"}
    assert {found[name]["measure"] for name in ("solved", "one")} == {"greedy_accuracy"}
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


def test_asking_for_the_lock_does_not_keep_a_run_from_starting(root: Path):
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            RunDirectory(root / "one").holder()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(10):
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


def test_no_run_lies_outside_the_root(root: Path, client: TestClient):
    outside = ("", ".", "..", "~", "one~..", "..~runs~one", "../runs", "one/..", "/etc", "one\\..", "one\0")
    for run in (*outside, "no-run", "two", "a~b~c"):
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


@pytest.mark.parametrize("count", [0, 1, 59, 60, 61, 1000])
def test_thinned(count: int):
    shown = thinned([float(n) for n in range(count)], 60)
    assert len(shown) == min(count, 60)
    assert shown == sorted(set(shown))
    assert shown[:1] + shown[-1:] == ([0.0, count - 1.0] if count else [])


def events(app: Starlette, path: str, *, until: tuple[str, int]) -> list[tuple[str, Any]]:
    """The events of a stream, until that of a step has come."""
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
            if found and (found[-1][0], found[-1][1].get("step")) == until:
                scope.cancel()

        request = {
            "type": "http", "method": "GET", "path": location, "raw_path": location.encode(), "headers": [],
            "query_string": query.encode(), "root_path": "", "scheme": "http", "server": ("127.0.0.1", 1),
        }  # fmt: skip
        with anyio.move_on_after(20), anyio.CancelScope() as scope:
            await app(request, receive, send)  # type: ignore[arg-type]

    anyio.run(run)
    return found


def test_events_bring_what_is_there_and_what_comes_later(root: Path):
    def write() -> None:
        with (root / "one" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "reward": 9.0}\n')

    later = threading.Timer(0.3, write)
    later.start()
    stream = events(create_app(root), "/api/runs/one/events?after=2", until=("step", 4))
    later.join()
    assert [name for name, _ in stream] == ["step", "status", "evaluations", "step"]
    assert (stream[0][1]["tokens"], stream[1][1]) == (600, {"status": "finished"})
    assert stream[2][1]["evaluations"][0]["greedy_accuracy"] == 0.25
    assert stream[-1][1]["reward"] == 9.0
