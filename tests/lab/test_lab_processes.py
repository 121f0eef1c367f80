"""Runs that are started, stopped, resumed and forked from the page: real ones, each a process of its own."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from grouprl.config.run import RunConfig, load_config
from grouprl.files import read_json
from grouprl.lab.app import create_app
from grouprl.record.read import read_run
from lab_processes import ended, started
from small_runs import tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    root.mkdir()
    with TestClient(create_app(root)) as client:
        yield client


def status(client: TestClient, run: str) -> str:
    found = client.get(f"/api/runs/{run}").json()
    assert "status" in found, found
    return str(found["status"])


@pytest.mark.slow
def test_a_run_is_started_stopped_and_resumed(client: TestClient, root: Path):
    assert started(client, "mine", "steps=1000000", "algorithm=dr_grpo") == {"id": "mine"}
    assert status(client, "mine") == "running"
    assert client.post("/api/runs/mine/resume", json={}).json()["error"] == "mine is running"
    until = time.monotonic() + 60
    while not client.get("/api/runs/mine/series").json()["step"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert client.post("/api/runs/mine/stop", json={}).status_code == 200
    ended(root / "mine")
    # Cleanly: the step was finished and saved.
    run = read_run(root / "mine")
    last = run.metrics[-1]["step"]
    assert (run.summary["steps"], run.summary["algorithm"]) == (last, "dr_grpo")
    assert (root / "mine" / "checkpoints" / f"step-{last:06d}").is_dir()
    assert status(client, "mine") == "stopped"
    assert client.post("/api/runs/mine/stop", json={}).json()["error"] == "mine is not running"

    assert client.post("/api/runs/mine/resume", json={"changes": [f"steps={last + 2}"]}).json() == {"id": "mine"}
    ended(root / "mine")
    assert [row["step"] for row in read_run(root / "mine").metrics] == list(range(1, last + 3))


@pytest.mark.slow
def test_a_fork_shares_the_steps_before_it(client: TestClient, root: Path):
    started(client, "first", "steps=4")
    ended(root / "first")
    before = tree(root / "first")
    body = {"step": 2, "name": "second", "changes": ["algorithm.kl_coef=0.5", "steps=3"]}
    assert client.post("/api/runs/first/fork", json=body).json() == {"id": "second"}
    ended(root / "second")
    assert tree(root / "first") == before
    first, second = read_run(root / "first"), read_run(root / "second")
    assert first.metrics[:2] == second.metrics[:2]
    assert len(second.metrics) == 3
    assert (first.metrics[2]["kl_coef"], second.metrics[2]["kl_coef"]) == (0.04, 0.5)
    assert load_config(RunConfig, [root / "second" / "config.yaml"], []).algorithm.kl_coef == 0.5
    assert read_json(root / "second" / "forked.json") == {"from": "first", "step": 2}
    shown = {run["id"]: run["forked"] for run in client.get("/api/runs").json()["runs"]}
    assert shown == {"first": None, "second": {"from": "first", "step": 2}}
    assert completions(root / "first", "step <= 2") == completions(root / "second", "step <= 2") != []
    # The same weights, the same random numbers: the next step begins with the same completions.
    texts = [[row["text"] for row in completions(root / name, "step = 3")] for name in ("first", "second")]
    assert texts[0] == texts[1] != []


def completions(directory: Path, where: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(directory / "rollouts.sqlite")) as database:
        database.row_factory = sqlite3.Row
        query = f"SELECT * FROM completions WHERE {where} ORDER BY step, group_index, completion_index"
        return [dict(row) for row in database.execute(query)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"recipe": "demo", "name": "../out"}, "expected a name of letters"),
        ({"recipe": "demo", "name": ""}, "expected a name of letters"),
        ({"recipe": "../../etc/passwd", "name": "a"}, "expected one of the recipes"),
        ({"recipe": "abacus_sft", "name": "a"}, "expected one of the recipes"),
        ({"recipe": "demo", "name": "a", "changes": ["--resume"]}, "expected changes such as rollout.group_size=16"),
        ({"recipe": "demo", "name": "a", "changes": ["/etc/passwd"]}, "expected changes such as"),
        ({"recipe": "demo", "name": "a", "changes": ["rollout.grup_size=3"]}, "rollout.group_size"),
        ({"recipe": "demo", "name": "a", "changes": [1]}, "changes: expected a list of texts"),
        ({"recipe": "demo", "name": "a", "changes": ["steps=1"] * 101}, "changes: expected at most 100, got 101"),
        ({"recipe": "demo", "name": "a", "changes": "steps=1"}, "changes: expected a list of texts"),
        ({"recipe": "demo", "name": "a", "changes": ["runs_dir=/elsewhere"]}, "use the field Name"),
        ({"recipe": "demo", "name": "a", "changes": ["name=b"]}, "use the field Name"),
        ({"recipe": "demo"}, "name: expected a text"),
        ({"recipe": "demo", "name": "taken"}, "a folder of this name exists"),
        pytest.param(
            {"recipe": "demo", "name": "a", "changes": ["task.name=nowhere"]}, "nowhere", marks=pytest.mark.slow
        ),
    ],
)
def test_what_cannot_be_started_says_why(client: TestClient, root: Path, body: dict[str, Any], expected: str):
    (root / "taken").mkdir()
    answer = client.post("/api/runs", json=body)
    assert (answer.status_code, expected in answer.json()["error"]) == (400, True), answer.text
    assert not (root / "a" / "metrics.jsonl").exists()


def test_what_a_run_says_when_it_ends_at_once_is_the_answer(
    client: TestClient, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A program in place of Python that ends as a run does which finds its mistake late: the case above in a moment."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'error: task.name: expected one of these, got nowhere' >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    answer = client.post("/api/runs", json={"recipe": "demo", "name": "a", "changes": ["task.name=nowhere"]})
    assert (answer.status_code, "task.name: expected one of these, got nowhere" in answer.json()["error"]) == (
        400,
        True,
    )
    assert not (root / "a" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_fork_that_cannot_be_leaves_nothing(client: TestClient, root: Path):
    started(client, "first", "steps=1")
    ended(root / "first")
    for body, expected in (
        ({"step": 7, "name": "b"}, "expected a checkpoint of step 7"),
        ({"step": 1, "name": "first"}, "a folder of this name exists"),
        ({"step": 1, "name": "b", "changes": ["steps=none"]}, "steps"),
        ({"step": 1, "name": "b", "changes": ["steps=1"]}, "expected more than 1, the step of the checkpoint"),
        ({"step": 1, "name": "b", "changes": ["steps=2", "task.name=nowhere"]}, "nowhere"),
        ({"step": 10**300, "name": "b"}, "step: expected 0 to"),
        ({"step": -1, "name": "b"}, "step: expected 0 to"),
        ({"step": 1, "name": "b" * 201}, "at most 200"),
        ({"step": 1, "name": "b", "changes": [f"steps={'[' * 30_000}"]}, "nested too deeply"),
        ({"step": 1, "name": "b", "changes": [f"steps={'9' * 5000}"]}, "digits"),
        ({"step": "1", "name": "b"}, "step: expected a whole number"),
        ({"step": True, "name": "b"}, "step: expected a whole number"),
    ):
        answer = client.post("/api/runs/first/fork", json=body)
        assert (answer.status_code, expected in answer.json()["error"]) == (400, True), answer.text
    assert {path.name for path in root.iterdir()} == {"first", ".lab"}


def test_recipes_that_train_a_policy_are_offered(client: TestClient):
    found = {recipe["name"]: recipe for recipe in client.get("/api/recipes").json()["recipes"]}
    assert "demo" in found
    assert not {"abacus_sft", "abacus_dpo", "compare_family"} & set(found)
    assert "name: demo" in found["demo"]["text"]
