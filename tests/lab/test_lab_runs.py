"""What the lab finds below its root and never follows out of it; what a page that follows a run is sent."""

from __future__ import annotations

import json
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from starlette.testclient import TestClient
from starlette.types import Message
from typer.testing import CliRunner

from grouprl.cli import app as cli
from grouprl.lab import events as events_module
from grouprl.lab.events import Follower, stream
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


def record(folder: Path, steps: int, *, after: int | None = None) -> Path:
    """With rewards of 0.5; resumed after a step, of 2."""
    opened = RunRecord.create(folder, FULL_CONFIG) if after is None else RunRecord.reopen(folder, after)
    with opened as run:
        for step in range((after or 0) + 1, steps + 1):
            reward = 0.5 if after is None else 2.0
            run.step(StepRecord(step, {"reward": reward, "completion_tokens": 10}, [], [], []))
    return folder


def follower(folder: Path, after: int = 0, generation: int | None = None) -> Follower:
    return Follower(Runs(folder.parent), folder, after, generation)


def sent(one: Follower) -> list[tuple[str, Any, str | None]]:
    """Name, data and id of the events of a look."""
    found = []
    for part in "".join(one.look()).split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in part.split("\n"))
        found.append((lines["event"], json.loads(lines["data"]), lines.get("id")))
    return found


def steps(events: list[tuple[str, Any, str | None]]) -> list[Any]:
    """The restarts and the steps among them, each with its reward."""
    return [name if name == "restart" else (data["step"], data["reward"]) for name, data, _ in events
            if name in ("restart", "step")]  # fmt: skip


def test_a_resume_between_two_looks_is_told(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 9)
    one = follower(run)
    assert [step for step, _ in steps(sent(one))] == list(range(1, 10))
    record(run, 10, after=7)
    rows = [(step, 0.5) for step in range(1, 8)] + [(step, 2.0) for step in (8, 9, 10)]
    assert steps(sent(one)) == ["restart", *rows]
    assert sent(one) == []
    assert steps(sent(follower(run, 99)))[:2] == ["restart", (1, 0.5)]  # the run went back


def test_a_page_that_comes_again_is_told_of_the_resume_that_it_missed(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 9)
    runs = Runs(tmp_path)
    last = next(identity for name, _, identity in reversed(sent(Follower(runs, run, 0, None))) if name == "step")
    assert last is not None
    step, generation = map(int, last.split("-"))
    assert steps(sent(Follower(runs, run, step, generation))) == []
    record(run, 10, after=7)
    assert steps(sent(Follower(runs, run, step, generation)))[:2] == ["restart", (1, 0.5)]


@pytest.mark.parametrize("count", [3, 5])
def test_another_run_in_a_file_of_the_same_number_shows_its_own_rows_alone(tmp_path: Path, count: int) -> None:
    """The number of a file that was removed comes back at once; here it is the same file, as long or longer."""
    runs, run = Runs(tmp_path), record(tmp_path / "run", 3)
    one = Follower(runs, run, 0, None)
    assert len(steps(sent(one))) == 3
    path = run / "metrics.jsonl"
    before = path.stat().st_ino
    more = "".join(f'{{"step":{step},"reward":7.5}}\n' for step in range(4, count + 1))
    path.write_text(path.read_text().replace("0.5", "7.5") + more)
    assert path.stat().st_ino == before
    assert steps(sent(one)) == ["restart", *((step, 7.5) for step in range(1, count + 1))]
    assert {row["reward"] for row in runs.metrics(run)} == {7.5}


def test_a_run_that_is_made_anew_with_the_same_last_lines(tmp_path: Path) -> None:
    runs, run = Runs(tmp_path), record(tmp_path / "run", 30)
    assert len(runs.metrics(run)) == 30
    lines = (run / "metrics.jsonl").read_text().split("\n")
    shutil.rmtree(run)
    record(tmp_path / "run", 1)
    lines[0] = lines[0].replace("0.5", "7.5")
    (run / "metrics.jsonl").write_text("\n".join(lines))
    assert runs.metrics(run)[0]["reward"] == 7.5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", "nonsense\n"),
        ("metrics.jsonl", None),
        ("config.yaml", "steps: many"),
        ("evaluations.jsonl", "{}\n"),
    ],
)
def test_a_damaged_run_is_broken_until_it_is_mended(tmp_path: Path, name: str, content: str | None) -> None:
    run = record(tmp_path / "run", 2)
    path = run / name
    good = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    path.mkdir() if content is None else path.write_text(content)
    one = follower(run)
    ((event, data, _),) = sent(one)
    assert (event, data["status"]) == ("status", "broken")
    assert name in data["error"]
    assert sent(one) == []  # and no end, after which the browser would ask again for ever
    path.rmdir() if content is None else path.unlink()
    path.write_text(good)
    found = sent(one)
    assert [step for step, _ in steps(found)] == [1, 2]
    assert ("status", {"status": "stopped"}, None) in found
    shutil.rmtree(run)
    assert sent(one)[0][1]["status"] == "broken"


def test_what_is_no_step(root: Path, client: TestClient) -> None:
    record(root / "run", 1)
    for after in ("9" * 5000, "²", "٣", "1-", "-1", "1.5", "1-2-3"):
        answer = client.get("/api/runs/run/events", params={"after": after})
        assert (answer.status_code, "after: expected the number of a step" in answer.json()["error"]) == (400, True)


def test_an_evaluation_is_read_when_its_file_has_changed_and_not_before(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 1)
    one = follower(run)
    assert ("evaluations", {"evaluations": []}, None) in sent(one)
    (run / "evaluations.jsonl").write_text('{"step": 1, "greedy_accuracy": 0.5}\n')
    assert [name for name, _, _ in sent(one)] == ["evaluations"]
    assert sent(one) == []


def test_nobody_waits_while_a_stream_catches_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 rows, and a task that only wants a turn: it gets one between any two pieces."""
    run = record(tmp_path / "run", 0)
    metrics = {f"metric/{number}": number / 7 for number in range(20)}
    rows = (json.dumps({"step": step, **metrics}) for step in range(1, 501))
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(events_module, "_POLL_SECONDS", 0.0)
    turns, pieces = [0], list[tuple[int, int]]()

    async def other() -> None:
        while True:
            turns[0] += 1
            await anyio.sleep(0)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(other)
            async for piece in stream(follower(run), lambda: bool(pieces)):
                pieces.append((piece.count("event: step"), turns[0]))
            group.cancel_scope.cancel()

    anyio.run(main)
    assert sum(count for count, _ in pieces) == 500
    assert max(count for count, _ in pieces) == 100
    assert all(later > earlier for (_, earlier), (_, later) in pairwise(pieces))


def test_streams_that_nobody_reads_are_dropped_and_hold_one_piece(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 of them, of which none takes its second message: the lab makes two pieces for each, and keeps 4 streams."""
    record(root / "run", 0)
    rows = (json.dumps({"step": step, "reward": 0.5}) for step in range(1, 5_001))
    (root / "run" / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(events_module, "_MOST_STREAMS", 4)
    monkeypatch.setattr(events_module, "_UNREAD_SECONDS", 1.5)
    app, bodies, ended, dropped = create_app(root), list[bytes](), list[int](), list[int]()

    async def client(number: int) -> None:
        async def receive() -> Message:
            await anyio.sleep_forever()
            raise AssertionError

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                bodies.append(message["body"])
                await anyio.sleep_forever()

        path = "/api/runs/run/events"
        scope = {"type": "http", "asgi": {"version": "3.0"}, "method": "GET", "path": path, "headers": []}
        await app(scope | {"query_string": b"", "root_path": "", "scheme": "http"}, receive, send)
        ended.append(number)

    async def main() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(client, number)
                while len(ended) < 96:
                    await anyio.sleep(0.01)
                dropped.extend(ended)

    anyio.run(main)
    assert len(dropped) == 96  # within the 1.5 s
    assert (sorted(ended), events_module._OPEN) == ([*range(100)], [])
    assert {body.count(b"event: step") for body in bodies} == {100}
    assert 4 <= len(bodies) <= 100
