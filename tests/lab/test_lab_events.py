"""What a page that follows a run is sent, whatever happens to the run between two looks."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from grouprl.lab import events as events_module
from grouprl.lab.events import Follower, stream
from grouprl.lab.runs import Runs
from grouprl.lab.server import create_app
from grouprl.record.write import RunRecord
from grouprl.types import StepRecord
from lab_runs import FULL_CONFIG


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
    """2,000 rows, and a task that only wants a turn: it gets one between any two pieces."""
    run = record(tmp_path / "run", 0)
    metrics = {f"metric/{number}": number / 7 for number in range(20)}
    rows = (json.dumps({"step": step, **metrics}) for step in range(1, 2_001))
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
    assert sum(count for count, _ in pieces) == 2_000
    assert max(count for count, _ in pieces) == 100
    assert all(later > earlier for (_, earlier), (_, later) in pairwise(pieces))


def test_streams_that_nobody_reads_are_dropped_and_hold_one_piece(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 of them, of which none takes its second message: the lab makes two pieces for each, and keeps 4 streams."""
    record(root / "run", 0)
    rows = (json.dumps({"step": step, "reward": 0.5}) for step in range(1, 20_001))
    (root / "run" / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(events_module, "_MOST_STREAMS", 4)
    monkeypatch.setattr(events_module, "_UNREAD_SECONDS", 5.0)
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
    assert len(dropped) == 96  # within the 5 s
    assert (sorted(ended), events_module._OPEN) == ([*range(100)], [])
    assert {body.count(b"event: step") for body in bodies} == {100}
    assert 4 <= len(bodies) <= 100
