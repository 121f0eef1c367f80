"""Whatever lies in a folder of runs: what is damaged is said, and hides nothing else."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from comparisons import with_and_without_critic
from grouprl.files import is_number, parse
from grouprl.lab import runs as runs_module
from grouprl.lab.runs import Runs
from grouprl.lab.server import create_app
from grouprl.record.layout import RunDirectory
from grouprl.tools.compare.read import read_comparison
from grouprl.types import UserError
from lab_runs import Made, make_run

DEEP, LONG = "[" * 1500, "9" * 5000
NESTED = '{"a":' * 400 + "1" + "}" * 400  # deeper than it could be written again
SINGLE = Made((1.0, 0.0), advantages=(1.0, -1.0))


def put(path: Path, content: bytes | str | None) -> None:
    path.unlink(missing_ok=True)
    path.mkdir() if content is None else path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("one", "other"):
        make_run(tmp_path_factory.getbasetemp() / "two" / name, [SINGLE])
    return tmp_path_factory.getbasetemp() / "two"


@pytest.fixture
def root(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "runs"))


def listed(client: TestClient) -> dict[str, Any]:
    return {run["id"]: run for run in client.get("/api/runs").json()["runs"]}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("summary.json", b'{"name": "caf\xe9"}', ": expected a text in UTF-8"),
        ("summary.json", '{"after": 5}', ": after: expected the results of an evaluation, got 5"),
        ("summary.json", f'{{"steps": {LONG}}}', ": expected JSON"),
        ("summary.json", DEEP, ": expected JSON"),
        ("summary.json", NESTED, ": expected at most 100 levels of li"),
        ("summary.json", "[1]", ": expected a JSON object"),
        *(("metrics.jsonl", f'{{"step":{one}}}\n', ":1: expected a step") for one in ('"1"', "null", "true", "-1")),
        ("metrics.jsonl", '{"step":1}\n{"reward":1}\n', ":2: expected a step"),
        ("metrics.jsonl", '{"step":1}\n\n{"step":2}\n', ":2: expected JSON"),
        ("metrics.jsonl", f'{{"step":1,"a":{NESTED}}}\n', ":1: expected at most 100 levels of li"),
        ("metrics.jsonl", None, ": expected a file"),
        ("evaluations.jsonl", '{"greedy_accuracy":1}\n', ":1: expected a step"),
        ("config.yaml", "steps: many", ": steps: expected a whole number, got 'many'"),
        ("config.yaml", "note: {a: [", ": expected YAML"),
        ("config.yaml", f"a: {DEEP}", ": expected YAML"),
        ("config.yaml", f"a: {'[' * 120 + ']' * 120}", ": expected at most 100 levels of li"),
        ("config.yaml", f"a: {LONG}", ": expected YAML"),
        ("config.yaml", "a: &self [*self]", ": expected YAML"),
        ("config.yaml", "a: !!binary aGVsbG8=", ": expected YAML"),
        ("config.yaml", "[1]", ": expected settings"),
    ],
)
def test_a_damaged_run_is_said_and_hides_no_other(
    root: Path, client: TestClient, name: str, content: bytes | str | None, said: str
) -> None:
    put(root / "one" / name, content)
    for _ in range(2):  # what was found is remembered, and the mistake too
        found = listed(client)
        assert (found["one"]["status"], found["other"]["status"]) == ("broken", "stopped")
        assert f"one/{name}{said}" in found["one"]["error"]
        answer = client.get("/api/runs/one")
        assert (answer.status_code, name + said in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "steps: 9\nnote: 2024-99-99\ndate: 2024-01-01\nalgorithm: [1]\nmodel: {path: [1]}\nseed: {}\n"),
        ("config.yaml", b"note: caf\xc3\xa9\nlarge: .inf\n"),
        ("metrics.jsonl", '{"step":1,"completion_tokens":"x","time/total":[1],"reward":{"a":1}}\n'),
        ("metrics.jsonl", '{"step":1,"completion_tokens":NaN,"reward":1e999,"a\u2028b":2}\n'),
        ("metrics.jsonl", ""),
        ("summary.json", '{"before": null, "after": {"greedy_accuracy": "high"}, "train_seconds": "long"}'),
        ("evaluations.jsonl", '{"step":0,"greedy_accuracy":"x"}\n{"torn'),
    ],
)
def test_what_is_odd_is_shown(root: Path, client: TestClient, name: str, content: bytes | str) -> None:
    put(root / "one" / name, content)
    assert listed(client)["one"]["status"] == "stopped"
    answer = client.get("/api/runs/one")
    assert answer.status_code == 200
    assert ("a\u2028b" in answer.json()["metrics"]) == ("\u2028" in str(content))  # it is no end of a line
    series = client.get("/api/runs/one/series").json()
    json.dumps(series, allow_nan=False)
    assert series["columns"].get("reward", []) in ([None], [], [0.5])
    assert set(series["tokens"]) <= {0}


def test_a_mended_run_is_read_again(root: Path) -> None:
    runs, path = Runs(root), root / "one" / "summary.json"
    path.write_text("{")
    assert runs.overview(root / "one")["status"] == "broken"
    path.write_text('{"train_seconds": 7}')
    assert runs.overview(root / "one")["seconds"] == 7


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_lock_keeps_nobody_waiting(root: Path, client: TestClient) -> None:
    for name in ("run.lock", "summary.json", "evaluations.jsonl", "rewards.json", "rollouts.sqlite-journal"):
        (root / "one" / name).unlink(missing_ok=True)
        os.mkfifo(root / "one" / name)
    assert RunDirectory(root / "one").holder() is None
    assert listed(client)["one"]["status"] == "broken"
    assert client.get("/api/runs/one/groups/1/0").status_code == 400


def test_a_folder_of_another_user_hides_nothing(root: Path) -> None:
    # pytest's own folders are closed to everybody else.
    open_to_all, me = Path(tempfile.mkdtemp()), os.geteuid()
    try:
        open_to_all.chmod(0o755)
        shutil.copytree(root / "one", open_to_all / "mine")
        (open_to_all / "closed").mkdir()
        (open_to_all / "closed" / "config.yaml").touch()
        (open_to_all / "closed").chmod(0o000 if me else 0o700)
        if me == 0:
            os.seteuid(65534)
        assert [path.name for path in Runs(open_to_all).folders()] == ["mine"]
    finally:
        os.seteuid(me)
        (open_to_all / "closed").chmod(0o700)
        shutil.rmtree(open_to_all)


@pytest.mark.parametrize("name", ["a~b", "a\\b", os.fsdecode(b"a\xff"), "~", "a~"])
def test_only_runs_with_an_id_of_their_own_are_listed(root: Path, client: TestClient, name: str) -> None:
    for place in (name, "a/b"):
        shutil.copytree(root / "one", root / place)
    found = listed(client)
    assert set(found) == {"one", "other", "a~b"}
    assert found["a~b"]["name"] == "b"
    assert all(client.get(f"/api/runs/{run}").status_code == 200 for run in found)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rewards.json", '{"weights": {"exact": "x"}}', "expected the weight of each reward by its name"),
        ("rewards.json", b'{"caf\xe9": 1}', "rewards.json: expected a text in UTF-8"),
        ("config.yaml", "algorithm: {passes: 1.5}", "expected the options of an algorithm"),
        ("config.yaml", "algorithm:", "expected the options of an algorithm"),
    ],
)
def test_settings_that_the_numbers_need(
    root: Path, client: TestClient, name: str, content: str | bytes, said: str
) -> None:
    put(root / "one" / name, content)
    for path_asked in ("explain/group?run=one&step=1", "runs/one/groups/1/0"):
        answer = client.get(f"/api/{path_asked}")
        assert (answer.status_code, said in answer.json()["error"]) == (400, True)


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


def test_readers_in_several_threads(root: Path) -> None:
    runs, found = Runs(root), list[int]()
    threads = [threading.Thread(target=lambda: found.append(len(runs.metrics(root / "one")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compared")
    shutil.copytree(with_and_without_critic(root / "good"), root / "bad")
    return root


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("comparison.json", content) for content in (b"{}", b'{"seeds":1}', b"\xff")),
        ("ppo-seed0/summary.json", b'{"after": 5}'),
        ("ppo-seed0/metrics.jsonl", b'{"step": "x"}\n'),
        ("ppo-seed0/held_out.jsonl", b'{"step": 2}\n'),
        (
            "ppo-seed0/held_out.jsonl",
            b'{"step": 2, "problem_ids": ["a"], "greedy": [], "correct": [1], "samples": 1}\n',
        ),
        ("ppo-seed0/examples.json", b'{"after": 5}'),
    ],
)
def test_a_damaged_file_of_a_comparison_hides_no_other(compared: Path, name: str, content: bytes) -> None:
    def answers() -> list[int]:
        with TestClient(create_app(compared)) as client:
            return [client.get(f"/api/comparisons/{name}").status_code for name in ("bad", "good")]

    path = compared / "bad" / name
    whole = path.read_bytes() if path.exists() else None
    try:
        path.write_bytes(content)
        assert answers() == [400, 200]
    finally:
        path.unlink() if whole is None else path.write_bytes(whole)
    assert answers() == [200, 200]


def test_a_seed_leads_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    (folder / "grpo-seed").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    given = {"seeds": ["/../../outside"], "variants": {"grpo": []}}
    (folder / "comparison.json").write_text(json.dumps(given))
    with pytest.raises(UserError, match="expected `seeds`, a list of whole numbers"):
        read_comparison(folder)


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
        parse("[" * 101 + "]" * 101, "x")
