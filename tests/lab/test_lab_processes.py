"""What the page does to runs: started, stopped, resumed, forked, noted, renamed; what the lab must not do to others."""

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
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from grouprl.config.run import RunConfig, load_config
from grouprl.files import read_json
from grouprl.lab import trying
from grouprl.lab.server import create_app
from grouprl.record.layout import RunDirectory, lock_directory
from grouprl.record.read import read_run
from grouprl.record.write import RunRecord
from grouprl.types import UserError
from lab_runs import CONFIG, Made, add_step, make_run
from small_runs import tree

# Seconds instead of a minute: 2 problems x 4 completions of at most 8 tokens.
QUICK = [
    "model.threads=1", "rollout.problems_per_step=2", "rollout.group_size=4", "rollout.max_tokens=8",
    "evaluation.problems=2", "evaluation.samples=1", "checkpoint.every=1", "checkpoint.keep=100",
    "rollout.scoring.workers=1",
]  # fmt: skip


def ended(directory: Path, *, after: float = 60.0) -> None:
    """Waits until nobody has the directory."""
    until = time.monotonic() + after
    while RunDirectory(directory).holder() is not None:
        assert time.monotonic() < until, "the run has not ended"
        time.sleep(0.05)


def started(client: TestClient, name: str, *changes: str) -> Any:
    body = {"recipe": "demo", "name": name, "changes": [*QUICK, *changes]}
    answer = client.post("/api/runs", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def status(client: TestClient, run: str) -> str:
    found = client.get(f"/api/runs/{run}").json()
    assert "status" in found, found
    return str(found["status"])


@pytest.mark.slow
def test_a_run_is_started_stopped_and_resumed(client: TestClient, root: Path):
    changes = ("steps=1000000", "checkpoint.every=1000000", "algorithm=dr_grpo")
    assert started(client, "mine", *changes) == {"id": "mine"}
    assert status(client, "mine") == "running"
    process = RunDirectory(root / "mine").holder()
    assert client.post("/api/runs/mine/resume", json={}).json()["error"] == "mine is running"
    until = time.monotonic() + 60
    while not client.get("/api/runs/mine/series").json()["step"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    first, again = (client.post("/api/runs/mine/stop", json={}) for _ in range(2))
    assert first.status_code == 200
    assert again.json()["error"] in ("mine is stopping: it finishes its step and saves", "mine is not running")
    ended(root / "mine")
    until = time.monotonic() + 20
    while Path(f"/proc/{process}").exists():  # a run that ended is no zombie
        assert time.monotonic() < until
        time.sleep(0.05)
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


NO_FORKS = [
    ({"step": 7}, "expected a checkpoint of step 7"),
    ({"name": "first"}, "a folder of this name exists"),
    ({"changes": ["steps=none"]}, "steps"),
    ({"changes": ["steps=1"]}, "expected more than 1, the step of the checkpoint"),
    ({"changes": ["steps=2", "task.name=nowhere"]}, "nowhere"),
    ({"step": 10**300}, "step: expected 0 to"),
    ({"step": -1}, "step: expected 0 to"),
    ({"name": "b" * 201}, "at most 200"),
    ({"changes": [f"steps={'[' * 30_000}"]}, "nested too deeply"),
    ({"changes": [f"steps={'9' * 5000}"]}, "digits"),
    ({"step": "1"}, "step: expected a whole number"),
    ({"step": True}, "step: expected a whole number"),
]


@pytest.mark.slow
def test_a_fork_shares_the_steps_before_it_and_one_that_cannot_be_leaves_nothing(client: TestClient, root: Path):
    started(client, "first", "steps=4")
    ended(root / "first")
    before = tree(root / "first")
    for changed, expected in NO_FORKS:
        answer = client.post("/api/runs/first/fork", json={"step": 1, "name": "b", **changed})
        assert (answer.status_code, expected in answer.json()["error"]) == (400, True), answer.text
    assert {path.name for path in root.iterdir()} == {"first", ".lab"}
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
    ("changed", "expected"),
    [
        ({"name": "../out"}, "expected a name of letters"),
        ({"name": ""}, "expected a name of letters"),
        ({"name": None}, "name: expected a text"),
        ({"name": "taken"}, "a folder of this name exists"),
        ({"recipe": "../../etc/passwd"}, "expected one of the recipes"),
        ({"recipe": "abacus_sft"}, "expected one of the recipes"),
        ({"changes": ["--resume"]}, "expected changes such as rollout.group_size=16"),
        ({"changes": ["/etc/passwd"]}, "expected changes such as"),
        ({"changes": ["rollout.grup_size=3"]}, "rollout.group_size"),
        ({"changes": [1]}, "changes: expected a list of texts"),
        ({"changes": "steps=1"}, "changes: expected a list of texts"),
        ({"changes": ["steps=1"] * 101}, "changes: expected at most 100, got 101"),
        ({"changes": ["runs_dir=/elsewhere"]}, "use the field Name"),
        ({"changes": ["name=b"]}, "use the field Name"),
    ],
)
def test_what_cannot_be_started_says_why(client: TestClient, root: Path, changed: dict[str, Any], expected: str):
    (root / "taken").mkdir()
    answer = client.post("/api/runs", json={"recipe": "demo", "name": "a", **changed})
    assert (answer.status_code, expected in answer.json()["error"]) == (400, True), answer.text
    assert not (root / "a" / "metrics.jsonl").exists()


def test_what_a_run_says_at_its_end_is_told(
    client: TestClient, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A program in place of Python that ends as a run does which finds its mistake late."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'error: task.name: expected one of these, got nowhere' >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    answer = client.post("/api/runs", json={"recipe": "demo", "name": "a", "changes": ["task.name=nowhere"]})
    assert "task.name: expected one of these, got nowhere" in answer.json()["error"]
    assert not (root / "a" / "metrics.jsonl").exists()


def test_recipes_that_train_a_policy_are_offered(client: TestClient):
    found = {recipe["name"]: recipe for recipe in client.get("/api/recipes").json()["recipes"]}
    assert "demo" in found
    assert not {"abacus_sft", "abacus_dpo", "claims"} & set(found)
    assert "name: demo" in found["demo"]["text"]


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


def test_only_the_holder_of_the_lock_is_stopped(client: TestClient, root: Path, bystander: subprocess.Popen[bytes]):
    folder = make_run(root / "run", [Made((1.0, 0.0))])
    for said in (str(bystander.pid), "1", "0", "99999999", "9" * 23):
        handle = locked(folder, said)
        answer = client.post("/api/runs/run/stop", json={})
        os.close(handle)
        assert (answer.status_code, "which this lab cannot stop" in answer.json()["error"]) == (400, True)
    time.sleep(0.2)
    assert bystander.poll() is None


@pytest.mark.slow
def test_of_two_starts_of_one_name_one_is_the_run(client: TestClient, root: Path):
    bodies = [{"recipe": "demo", "name": "run", "changes": [*QUICK, "steps=1", f"seed={seed}"]} for seed in (5, 6)]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda body: client.post("/api/runs", json=body), bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 400]
    ended(root / "run")
    (won,) = [seed for seed, answer in zip((5, 6), answers, strict=True) if answer.status_code == 200]
    assert f"seed: {won}" in (root / "run" / "config.yaml").read_text()


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


def test_a_run_that_is_read_when_it_ends_leaves_one_plain_file(tmp_path: Path):
    """Or its last steps would stay in a second file, and be missing from a copy of the first."""
    record = RunRecord.create(tmp_path / "run", CONFIG)
    for step in range(1, 6):
        add_step(record, step, [Made((1.0, 0.0))] * 4)
    reader = sqlite3.connect(f"file:{tmp_path}/run/rollouts.sqlite?mode=ro", uri=True, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM completions").fetchall()
    threading.Timer(0.5, reader.close).start()
    record.close()
    assert not (tmp_path / "run" / "rollouts.sqlite-wal").exists()
    shutil.copy(tmp_path / "run" / "rollouts.sqlite", tmp_path / "copy.sqlite")
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as database:
        assert database.execute("SELECT COUNT(*) FROM completions").fetchone() == (5 * 8,)


def test_a_run_waits_for_who_reads_it(tmp_path: Path):
    """A finished run has no WAL, so that a reader holds up a resume."""
    folder = make_run(tmp_path / "run", [Made((1.0, 0.0))])
    reader = sqlite3.connect(folder / "rollouts.sqlite", check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM completions").fetchall()
    threading.Timer(0.5, reader.rollback).start()
    with RunRecord.reopen(folder, 1) as record:
        add_step(record, 2, [Made((0.5, 0.0))])
    reader.close()
    assert len(read_run(folder).metrics) == 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for name in ("one", "two", "both/grpo"):
        make_run(folder / name, [Made((1.0, 0.0))])
    return folder


@pytest.fixture
def kept(made: Path, root: Path) -> Path:
    return Path(shutil.copytree(made, root, dirs_exist_ok=True))


def line(client: TestClient, run: str) -> dict[str, Any]:
    (found,) = (one for one in client.get("/api/runs").json()["runs"] if one["id"] == run)
    return dict(found)


def refusal(client: TestClient, path: str, **body: Any) -> str:
    answer = client.post(f"/api/runs/{path}", json=body)
    assert answer.status_code in (400, 404), answer.text
    return str(answer.json()["error"])


def test_notes_are_kept_beside_the_run(client: TestClient, kept: Path) -> None:
    given = {"tags": ["best", "long", "best"], "note": "kl 0\n<b>", "archived": True}
    assert client.post("/api/runs/one/notes", json=given).json() == {"id": "one"}
    assert read_json(kept / "one" / "notes.json") == {**given, "tags": ["best", "long"]}
    shown = line(client, "one")
    assert (shown["tags"], shown["note"], shown["archived"]) == (["best", "long"], "kl 0\n<b>", True)
    assert (line(client, "two")["tags"], line(client, "two")["archived"]) == ([], False)
    (kept / "one" / "notes.json").write_text('{"tags": 3}')
    assert "notes.json: tags: expected" in line(client, "one")["error"]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"tags": "best"}, "tags: expected at most 20 texts"),
        ({"tags": [""]}, "tags: expected at most 20 texts of 1 to 40 characters"),
        ({"tags": ["a"] * 21}, "tags: expected at most 20"),
        ({"note": 3}, "note: expected a text"),
        ({"note": "a" * 10_001}, "note: expected a text of at most 10000"),
        ({"archived": "yes"}, "archived: expected true or false"),
    ],
)
def test_no_notes_change_nothing(client: TestClient, kept: Path, changed: dict[str, Any], error: str) -> None:
    before = tree(kept)
    assert error in refusal(client, "one/notes", **{"tags": [], "note": "", "archived": False, **changed})
    assert tree(kept) == before


def test_a_renamed_run_has_everything_under_its_new_name(client: TestClient, kept: Path) -> None:
    before = {name: data for name, data in tree(kept / "one").items() if name != "config.yaml"}
    assert client.post("/api/runs/one/rename", json={"name": "three"}).json() == {"id": "three"}
    assert not (kept / "one").exists()
    after = tree(kept / "three")
    assert {name: after[name] for name in before} == before
    assert yaml.safe_load((kept / "three" / "config.yaml").read_text())["name"] == "three"


def test_a_name_that_is_taken_or_none_is_refused(client: TestClient, kept: Path) -> None:
    before = tree(kept)
    for name in ("two", "../out", "", "a/b"):
        assert refusal(client, "one/rename", name=name)
        assert tree(kept) == before


def test_deleting_takes_the_name_of_the_run(client: TestClient, kept: Path) -> None:
    before, other = tree(kept / "one"), tree(kept / "two")
    assert "expected the run's name, one" in refusal(client, "one/delete", name="two")
    assert tree(kept / "one") == before
    assert client.post("/api/runs/one/delete", json={"name": "one"}).json() == {"id": "one"}
    assert not (kept / "one").exists()
    assert [*(kept / ".lab").glob("*")] == []
    assert tree(kept / "two") == other


@pytest.mark.parametrize(("what", "name"), [("rename", "b"), ("delete", None)])
def test_a_run_in_use_or_of_a_comparison_stays(client: TestClient, kept: Path, what: str, name: str | None) -> None:
    handle = lock_directory(kept / "one")
    try:
        assert f"in use by process {os.getpid()}" in refusal(client, f"one/{what}", name=name or "one")
    finally:
        os.close(handle)
    assert "got a run of the comparison both" in refusal(client, f"both~grpo/{what}", name=name or "grpo")
    assert "expected a run below" in refusal(client, f"nobody/{what}", name=name or "nobody")
    assert all((kept / run / "config.yaml").exists() for run in ("one", "both/grpo"))


@pytest.mark.slow
def test_a_typed_completion_is_scored_as_the_run_does(tmp_path: Path) -> None:
    """The task's verifier, a reward that hangs; a code file that is another one now is not run."""
    root = tmp_path / "own"
    root.mkdir()
    code = tmp_path / "mine.py"
    code.write_text(
        "import time\n\n\ndef slow(completions, **_):\n    texts = [one[0]['content'] for one in completions]\n"
        "    time.sleep('wait' in texts[0] and 30)\n    return [len(text) / 10 for text in texts]\n"
    )
    rewards = [{"name": "slow", "path": str(code), "weight": 2}, {"name": "correct_answer"}]
    with TestClient(create_app(root)) as client:
        started(client, "first", "steps=1", f"rewards={rewards}".replace("'", '"'), "rollout.scoring.seconds=3")
        ended(root / "first")
        group = client.get("/api/runs/first/groups/1/0").json()
        answer = group["columns"]["answer"].rpartition("#### ")[2]

        def tried(text: str) -> dict[str, Any]:
            found = client.post("/api/runs/first/try", json={"step": 1, "group": 0, "text": text})
            assert found.status_code == 200, found.text
            return dict(found.json())

        right = f"It is \\boxed{{{answer}}}"
        found = tried(right)
        assert [one["name"] for one in found["rewards"]] == ["slow", "correct_answer"]
        assert [one["value"] for one in found["rewards"]] == [pytest.approx(len(right) / 10), 1.0]
        assert found["total"] == pytest.approx(2 * len(right) / 10 + 1)
        assert (found["correct"], found["invalid"]) == (True, None)
        assert tried("no box")["correct"] is False
        hangs = tried("wait")
        assert hangs["total"] is None
        assert "slow" in hangs["invalid"]
        assert "expected a group below" in refusal(client, "first/try", step=1, group=99, text="a")
        for wrong in (-1, 10**16, 10**400):  # not the last group, and no error of SQLite's
            assert "step: expected a whole number" in refusal(client, "first/try", step=wrong, group=0, text="a")
            assert "group: expected a whole number" in refusal(client, "first/try", step=1, group=wrong, text="a")
        code.write_text("print(1)\n")
        assert "names the code file" in refusal(client, "first/try", step=1, group=0, text="a")


def test_a_file_of_the_current_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`grouprl lab .` in a received folder starts the scorer there; -m alone would import its json.py."""
    (tmp_path / "json.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trying, "_SECONDS", 1.0)  # Python imports json first
    with pytest.raises(UserError):
        trying.try_completion(tmp_path / "none", 1, 0, "a")
    assert not (tmp_path / "ran").exists()
