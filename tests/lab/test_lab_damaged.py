"""Whatever lies in a folder of runs: what is damaged is said, and hides nothing else."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from comparisons import comparison, ones, record
from grouprl.files import is_number, parse, read_json
from grouprl.lab import runs as runs_module
from grouprl.lab.app import create_app
from grouprl.lab.report.recorded import read_config
from grouprl.lab.runs import Runs
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_json_lines, read_run, read_summary
from grouprl.tools.compare.read import read_comparison
from grouprl.types import UserError
from lab_runs import Made, make_run

DEEP, LONG = "[" * 3000, "9" * 5000
NESTED = '{"a":' * 400 + "1" + "}" * 400  # deeper than it could be written again

# File, what it holds, and what is said of it.
DAMAGED = [
    ("summary.json", b'{"name": "caf\xe9"}', "summary.json: expected a text in UTF-8"),
    ("summary.json", b'{"after": 5}', "summary.json: after: expected the results of an evaluation, got 5"),
    ("summary.json", f'{{"steps": {LONG}}}'.encode(), "summary.json: expected JSON"),
    ("summary.json", DEEP.encode(), "summary.json: expected JSON"),
    ("summary.json", NESTED.encode(), "summary.json: expected at most 100 levels of li"),
    ("summary.json", b"[1]", "summary.json: expected a JSON object"),
    ("metrics.jsonl", b'{"step":"1"}\n', "metrics.jsonl:1: expected a step"),
    ("metrics.jsonl", b'{"step":null}\n', "metrics.jsonl:1: expected a step"),
    ("metrics.jsonl", b'{"step":true}\n', "metrics.jsonl:1: expected a step"),
    ("metrics.jsonl", b'{"step":-1}\n', "metrics.jsonl:1: expected a step"),
    ("metrics.jsonl", b'{"step":1}\n{"reward":1}\n', "metrics.jsonl:2: expected a step"),
    ("metrics.jsonl", b'{"step":1}\n\n{"step":2}\n', "metrics.jsonl:2: expected JSON"),
    ("metrics.jsonl", f'{{"step":1,"a":{DEEP}\n'.encode(), "metrics.jsonl:1: expected JSON"),
    ("metrics.jsonl", f'{{"step":1,"a":{NESTED}}}\n'.encode(), "metrics.jsonl:1: expected at most 100 levels of li"),
    ("metrics.jsonl", None, "metrics.jsonl: expected a file"),
    ("evaluations.jsonl", b'{"greedy_accuracy":1}\n', "evaluations.jsonl:1: expected a step"),
    ("evaluations.jsonl", f'{{"step":1,"a":{NESTED}}}\n'.encode(), "evaluations.jsonl:1: expected at most 100"),
    ("config.yaml", b"steps: many", "config.yaml: steps: expected a whole number, got 'many'"),
    ("config.yaml", b"note: {a: [", "config.yaml: expected YAML"),
    ("config.yaml", f"a: {DEEP}".encode(), "config.yaml: expected YAML"),
    ("config.yaml", f"a: {'[' * 120 + ']' * 120}".encode(), "config.yaml: expected at most 100 levels of li"),
    ("config.yaml", f"a: {LONG}".encode(), "config.yaml: expected YAML"),
    ("config.yaml", b"a: &self [*self]", "config.yaml: expected YAML"),
    ("config.yaml", b"a: !!binary aGVsbG8=", "config.yaml: expected YAML"),
    ("config.yaml", b"[1]", "config.yaml: expected settings"),
]
SINGLE = Made((1.0, 0.0), advantages=(1.0, -1.0))


def put(path: Path, content: bytes | None) -> None:
    path.unlink(missing_ok=True)
    path.mkdir() if content is None else path.write_bytes(content)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("one", "other"):
        make_run(tmp_path / "runs" / name, [SINGLE])
    return tmp_path / "runs"


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(create_app(root)) as client:
        yield client


def listed(client: TestClient) -> dict[str, Any]:
    return {run["id"]: run for run in client.get("/api/runs").json()["runs"]}


@pytest.mark.parametrize(("name", "content", "said"), DAMAGED)
def test_a_damaged_run_is_said_and_hides_no_other(
    root: Path, client: TestClient, name: str, content: bytes | None, said: str
) -> None:
    put(root / "one" / name, content)
    for _ in range(2):  # what was found is remembered, and the mistake too
        found = listed(client)
        assert (found["one"]["status"], found["other"]["status"]) == ("broken", "stopped")
        assert f"{root / 'one' / name}"[-20:] + said.removeprefix(name) in found["one"]["error"]
        answer = client.get("/api/runs/one")
        assert answer.status_code == 400
        assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "config.yaml",
            b"steps: 9\nnote: 2024-99-99\ndate: 2024-01-01\nalgorithm: [1]\nmodel: {path: [1]}\nseed: {}\n",
        ),
        ("config.yaml", b"note: caf\xe9\nlarge: .inf\n"),
        ("metrics.jsonl", b'{"step":1,"completion_tokens":"x","time/total":[1],"reward":{"a":1}}\n'),
        ("metrics.jsonl", b'{"step":1,"completion_tokens":NaN,"reward":1e999,"a\xe2\x80\xa8b":2}\n'),
        ("metrics.jsonl", b""),
        ("summary.json", b'{"before": null, "after": {"greedy_accuracy": "high"}, "train_seconds": "long"}'),
        ("evaluations.jsonl", b'{"step":0,"greedy_accuracy":"x"}\n{"torn'),
    ],
)
def test_what_is_odd_is_shown(root: Path, client: TestClient, name: str, content: bytes) -> None:
    put(root / "one" / name, content)
    assert listed(client)["one"]["status"] == "stopped"
    assert client.get("/api/runs/one").status_code == 200
    series = client.get("/api/runs/one/series").json()
    json.dumps(series, allow_nan=False)
    assert series["columns"].get("reward", []) in ([None], [], [0.5])
    assert set(series["tokens"]) <= {0}


def test_a_line_separator_is_no_end_of_a_line(root: Path, client: TestClient) -> None:
    put(root / "one" / "metrics.jsonl", '{"step":1,"a\u2028b":2}\n'.encode())
    assert "a\u2028b" in client.get("/api/runs/one").json()["metrics"]


def test_a_mended_run_is_read_again(root: Path) -> None:
    runs, path = Runs(root), root / "one" / "summary.json"
    path.write_text("{")
    assert runs.overview(root / "one")["status"] == "broken"
    path.write_text('{"train_seconds": 7}')
    assert runs.overview(root / "one")["seconds"] == 7


READERS: list[tuple[str, Callable[[Path], Any]]] = [
    ("summary.json", lambda folder: read_summary(folder)),
    ("summary.json", lambda folder: read_json(folder / "summary.json")),
    ("metrics.jsonl", lambda folder: read_json_lines(folder / "metrics.jsonl")),
    ("config.yaml", read_config),
    ("examples.json", read_run),
    ("config.yaml", read_run),
    ("metrics.jsonl", lambda folder: Runs(folder.parent).metrics(folder)),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("name", "reader"), READERS)
def test_a_pipe_keeps_nobody_waiting(root: Path, name: str, reader: Callable[[Path], Any]) -> None:
    (root / "one" / name).unlink(missing_ok=True)
    os.mkfifo(root / "one" / name)
    with pytest.raises(UserError, match=r"expected a (file|run directory)"):
        reader(root / "one")


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_lock_keeps_nobody_waiting(root: Path, client: TestClient) -> None:
    (root / "one" / "run.lock").unlink()
    os.mkfifo(root / "one" / "run.lock")
    assert RunDirectory(root / "one").holder() is None
    for name in ("summary.json", "evaluations.jsonl", "rewards.json", "rollouts.sqlite-journal"):
        (root / "one" / name).unlink(missing_ok=True)
        os.mkfifo(root / "one" / name)
    assert listed(client)["one"]["status"] == "broken"
    assert client.get("/api/runs/one/groups/1/0").status_code == 400


def test_a_folder_of_another_user_hides_nothing() -> None:
    # pytest's own folders are closed to everybody else.
    root, me = Path(tempfile.mkdtemp()), os.geteuid()
    try:
        root.chmod(0o755)
        make_run(root / "mine", [SINGLE])
        (root / "closed").mkdir()
        (root / "closed" / "config.yaml").touch()
        (root / "closed").chmod(0o000 if me else 0o700)
        if me == 0:
            os.seteuid(65534)
        assert [path.name for path in Runs(root).folders()] == ["mine"]
    finally:
        os.seteuid(me)
        (root / "closed").chmod(0o700)
        shutil.rmtree(root)


@pytest.mark.parametrize("name", ["a~b", "a\\b", os.fsdecode(b"a\xff"), "~", "a~"])
def test_only_runs_with_an_id_of_their_own_are_listed(root: Path, client: TestClient, name: str) -> None:
    make_run(root / name, [SINGLE])
    make_run(root / "a" / "b", [SINGLE])
    found = listed(client)
    assert set(found) == {"one", "other", "a~b"}
    assert found["a~b"]["name"] == "b"
    assert all(client.get(f"/api/runs/{run}").status_code == 200 for run in found)


@pytest.mark.parametrize("name", ["step-best2", "step-²", "step-", "step-1.tmp", "step-" + "9" * 200])
def test_other_folders_among_checkpoints(root: Path, client: TestClient, name: str) -> None:
    for checkpoint in ("step-000002", "step-000001", name):
        trainer = root / "one" / "checkpoints" / checkpoint / "trainer"
        trainer.mkdir(parents=True)
        (trainer / "state.json").write_text("{}")
    assert client.get("/api/runs/one").json()["checkpoints"] == [1, 2]
    assert client.get("/api/runs/one/completions/1/0/0").status_code == 200


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rewards.json", '{"weights": {"exact": "x"}}', "expected the weight of each reward by its name"),
        ("rewards.json", b'{"caf\xe9": 1}', "rewards.json: expected a text in UTF-8"),
        ("config.yaml", "algorithm: {passes: many}", "expected the options of an algorithm"),
        ("config.yaml", "algorithm: {passes: 1.5}", "expected the options of an algorithm"),
        ("config.yaml", "algorithm: {mask_overlong: 7}", "expected the options of an algorithm"),
        ("config.yaml", "algorithm:", "expected the options of an algorithm"),
    ],
)
def test_settings_that_the_numbers_need(
    root: Path, client: TestClient, name: str, content: str | bytes, said: str
) -> None:
    (root / "one" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for path_asked in ("explain/group?run=one&step=1", "runs/one/groups/1/0"):
        answer = client.get(f"/api/{path_asked}")
        assert answer.status_code == 400
        assert said in answer.json()["error"]


def test_what_nobody_foresaw_is_said_as_json(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> None:
        raise KeyError("inside")

    monkeypatch.setattr(runs_module, "read_summary", broken)
    with TestClient(create_app(root), raise_server_exceptions=False) as client:
        answer = client.get("/api/runs/one")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
    assert answer.json()["error"].startswith("one cannot be read: KeyError")
    with TestClient(create_app(root)) as client, pytest.raises(KeyError, match="inside"):
        client.get("/api/runs/one")  # the server gets it too, and writes where it came from


# Comparisons


def mixed(folder: Path) -> Path:
    """A comparison with and without a critic, of one finished run each."""
    comparison(folder, ["grpo", "ppo"], [0])
    for name, critic in (("grpo", "none"), ("ppo", "copy")):
        record(folder / f"{name}-seed0", [ones(1), ones(2), ones(2)])
        (folder / f"{name}-seed0" / "config.yaml").write_text(f"algorithm: {{name: {name}, critic: {critic}}}\n")
    return folder


def compared(root: Path) -> list[str]:
    with TestClient(create_app(root)) as client:
        return [one["name"] for one in client.get("/api/comparisons").json()["comparisons"]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("comparison.json", b"{}"),
        ("comparison.json", b'{"seeds":1}'),
        ("comparison.json", b"\xff"),
        ("ppo-seed0/summary.json", b'{"after": 5}'),
        ("ppo-seed0/metrics.jsonl", b'{"step": "x"}\n'),
        ("ppo-seed0/held_out.jsonl", b'{"step": 2}\n'),
        (
            "ppo-seed0/held_out.jsonl",
            b'{"step": 2, "problem_ids": ["a"], "greedy": [], "correct": [1], "samples": 1}\n',
        ),
        ("ppo-seed0/examples.json", b'{"after": 5}'),
        ("ppo-seed0/config.yaml", b"algorithm: ["),
    ],
)
def test_a_damaged_file_of_a_comparison_hides_no_other(tmp_path: Path, name: str, content: bytes) -> None:
    mixed(tmp_path / "good")
    folder = mixed(tmp_path / "bad")
    summary = folder / "ppo-seed0" / "summary.json"
    # Ahead of the baseline, so that the verdict reads the problems one by one.
    ahead = {"greedy_accuracy": 0.75}
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "after": ahead}))
    assert compared(tmp_path) == ["bad", "good"]
    (folder / name).write_bytes(content)
    assert compared(tmp_path) == ["good"]


def test_a_seed_leads_nowhere(tmp_path: Path) -> None:
    record(tmp_path / "outside", [ones(1), ones(2), ones(2)])
    folder = tmp_path / "bad"
    (folder / "grpo-seed").mkdir(parents=True)
    given = {"seeds": ["/../../outside"], "variants": {"grpo": []}}
    (folder / "comparison.json").write_text(json.dumps(given))
    with pytest.raises(UserError, match="expected `seeds`, a list of whole numbers"):
        read_comparison(folder)


# The smallest parts


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, True), (-1.5, True), (10**400, False), (True, False), ("1", False), (None, False), (float("nan"), False),
     (float("inf"), False)],
)  # fmt: skip
def test_what_is_a_number(value: object, expected: bool) -> None:
    assert is_number(value) is expected


def test_a_hundred_lists_in_each_other_are_read() -> None:
    assert parse("[" * 100 + "]" * 100, "x") is not None
    with pytest.raises(UserError, match="x: expected at most 100"):
        parse("[" * 102 + "]" * 102, "x")


def test_readers_in_several_threads(root: Path) -> None:
    runs, found = Runs(root), list[int]()
    threads = [threading.Thread(target=lambda: found.append(len(runs.metrics(root / "one")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
