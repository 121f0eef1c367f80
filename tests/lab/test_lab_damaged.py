"""Whatever lies in a folder of runs: what is damaged is said, and hides nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from comparisons import comparison, ones, record, with_and_without_critic
from grouprl.algorithms.named import NAMED
from grouprl.config.algorithm import options
from grouprl.files import is_number, parse
from grouprl.lab import runs as runs_module
from grouprl.lab.report.worked import Spread, exact_sum
from grouprl.lab.runs import Runs
from grouprl.lab.server import create_app
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_rollouts
from grouprl.tools.compare.read import read_comparison
from grouprl.tools.compare.report import comparison_answer
from grouprl.types import UserError
from lab_runs import CONFIG, Made, make_run

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
def test_settings_that_numbers_need(root: Path, client: TestClient, name: str, content: str | bytes, said: str) -> None:
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


PAIR = Made((1.0, 0.0), advantages=(1.0, -1.0))
PLACES = {
    "groups": "runs/run/groups?step=1",
    "group": "runs/run/groups/1/0",
    "completion": "runs/run/completions/1/0/0",
    "search": "runs/run/search?text=text",
    "history": "runs/run/history?problem=train-1",
    "walk": "explain/group?run=run&step=1",
}
EVERYWHERE = tuple(PLACES)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    return make_run(folder, [PAIR], config=CONFIG + "rollout: {max_tokens: 4}\n")


@pytest.fixture
def run(recorded: Path, root: Path) -> Path:
    return Path(shutil.copytree(recorded, root / "run"))


def change(run: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database, database:
        for statement in statements:
            database.execute(statement)


def refused(client: TestClient, where: str) -> str:
    answer = client.get(f"/api/{PLACES[where]}")
    assert answer.status_code == 400, (where, answer.text)
    found: str = answer.json()["error"]
    return found


def answered(client: TestClient, where: str) -> str:
    answer = client.get(f"/api/{PLACES[where]}")
    assert answer.status_code == 200, (where, answer.text)
    json.loads(answer.text, parse_constant=pytest.fail)
    return answer.text


@pytest.mark.usefixtures("run")
def test_as_it_was_recorded_everything_is_answered(client: TestClient) -> None:
    for where in EVERYWHERE:
        assert answered(client, where)


@pytest.mark.parametrize(("kept", "said"), [(0.5, "malformed"), (0.0, "file is not a database")])
def test_a_file_that_is_no_database(run: Path, client: TestClient, kept: float, said: str) -> None:
    path = run / "rollouts.sqlite"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))] or b"no database" * 1000)
    for where in EVERYWHERE:
        found = refused(client, where)
        assert "expected readable rollouts" in found
        assert said in found


@pytest.mark.parametrize("kind", ["nothing", "tableless", "missing"])
def test_a_database_without_rows(run: Path, client: TestClient, kind: str) -> None:
    path = run / "rollouts.sqlite"
    path.unlink()
    if kind == "nothing":
        path.touch()
    if kind == "tableless":
        change(run, "CREATE TABLE other (a)")
    assert "expected a step whose walk-through the run recorded (there is none)" in refused(client, "walk")
    assert "found none" in refused(client, "group")
    assert '"groups": []' in answered(client, "groups")


NUMBERS = ("groups", "group", "completion", "walk")
WRONG = [
    ("completions", "text = x'ff00'", ("group", "completion", "history", "walk"), "text: expected str"),
    ("completions", "text = CAST(x'ff00' AS TEXT)", ("group", "history", "walk"), "Could not decode"),
    ("completions", "reward = 'good'", (*NUMBERS, "history"), "reward: expected float"),
    ("completions", "length = 1000000000000", ("completion", "walk"), ": expected 4 bytes for each of 1000000000000"),
    ("completions", "stop_reason = 'tired'", ("groups", "group", "walk"), "stop_reason: expected end or length"),
    ("completions", "correct = 'yes'", (*NUMBERS, "history"), "correct: expected int"),
    ("completions", "components = '[1]'", ("group", "walk"), "components: expected a JSON object"),
    ("completions", 'components = \'{"exact": "x"}\'', ("group", "walk"), "components: expected numbers by name"),
    ("completions", "step_rewards = '[[\"a\", 1]]'", ("group", "completion", "walk"), "step_rewards: expected a list"),
    ("completions", "token_ids = x'0102'", ("completion", "walk"), "token_ids: expected 4 bytes for each of 2 tokens"),
    ("completions", "token_advantages = x'00'", ("completion", "walk"), "token_advantages: expected 4 bytes"),
    ("stages", "value = '{'", ("walk",), "expected JSON"),
    ("stages", "value = '[]'", ("walk",), "expected a JSON object"),
    ("stages", "value = '{\"completions\": [1]}'", ("walk",), "expected an entry for each of 2 completions"),
    ("stages", "stage = 'odd' || stage", ("walk",), "expected a step whose walk-through"),
    ("problems", "prompt = x'00'", ("groups", "group", "history", "walk"), "prompt: expected str"),
    ("problems", "messages = '[{\"content\": 7}]'", ("group", "walk"), "messages: expected a list of messages"),
    ("problems", "prompt_ids = x'00'", ("walk",), "prompt_ids: expected 4 bytes for each token"),
]


@pytest.mark.parametrize(("table", "assignment", "places", "said"), WRONG)
def test_a_column_that_holds_something_else(
    run: Path, client: TestClient, table: str, assignment: str, places: tuple[str, ...], said: str
) -> None:
    change(run, f"UPDATE {table} SET {assignment}")
    for where in EVERYWHERE:
        if where in places:
            assert said in refused(client, where), where
        else:
            assert client.get(f"/api/{PLACES[where]}").status_code in (200, 400), where
    if "walk" in places and table != "stages" and "decode" not in said:
        with pytest.raises(UserError, match=r"rollouts\.sqlite"):
            read_rollouts(run, 1)


def test_a_length_of_another_group_takes_no_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [PAIR, PAIR], config=CONFIG + "rollout: {max_tokens: 4}\n")
    with TestClient(create_app(tmp_path)) as client:
        before = answered(client, "walk")
        change(run, "UPDATE completions SET length = 1000000000000 WHERE group_index = 1")
        assert answered(client, "walk") == before


def test_a_problem_that_is_missing(run: Path, client: TestClient) -> None:
    change(run, "DELETE FROM problems")
    for where in ("group", "walk"):
        assert "expected the problem of step 1, group 0, found none" in refused(client, where)
    for where in ("groups", "completion", "search", "history"):
        answered(client, where)
    assert '"rows": []' in client.get("/api/runs/run/search?prompt=a").text


@pytest.mark.parametrize("values", ["1e308, -1e308", "9e999, -9e999", "1e308, 1e307", "9e999, 0.0"])
def test_rewards_that_no_sum_can_hold(run: Path, client: TestClient, values: str) -> None:
    first, second = values.split(",")
    change(run, f"UPDATE completions SET reward = CASE completion_index WHEN 0 THEN {first} ELSE {second} END")
    for name in ("grpo", "dr_grpo", "rloo", "reinforce_batch", "grpo_process", "openrlhf", "trl"):
        algorithm = json.dumps({"name": name, **options(NAMED[name])})
        (run / "config.yaml").write_text(f"algorithm: {algorithm}\nrollout: {{max_tokens: 4}}\n")
        for where in ("groups", "group", "history", "walk"):
            answered(client, where)


def test_sums_of_large_numbers() -> None:
    inf = float("inf")
    assert exact_sum([0.1] * 10) == 1.0
    assert exact_sum([1e308, 1e308]) == inf
    assert exact_sum([1e308, 1e308, -1e308]) in (1e308, inf)
    found = exact_sum([inf, -inf])
    assert found != found
    assert Spread.of([1e308, -1e308], "population").deviation == inf


def test_a_problem_may_be_called_anything(root: Path, client: TestClient) -> None:
    problems = (".", "..", "a\nb", "\n", "a/b", "a/../b", "%2e", "", "ü?&#")
    make_run(root / "run", [Made((1.0, 0.0), problem=problem) for problem in problems])
    for problem in problems:
        found = client.get("/api/runs/run/history", params={"problem": problem}).json()
        assert (found["problem_id"], found["total"], len(found["visits"])) == (problem, 1, 1)


def test_a_comparison_has_its_page(tmp_path: Path) -> None:
    folder = comparison(tmp_path / "clips", ["a", "b"], [0])
    for name in ("a", "b"):
        record(folder / f"{name}-seed0", [ones(1), ones(2), ones(3)])
    answer = TestClient(create_app(tmp_path)).get("/api/comparisons/clips").json()
    assert answer["verdict"] == comparison_answer(read_comparison(folder))["verdict"]
    assert [one["name"] for one in answer["variants"]] == ["a", "b"]


def test_a_comparison_that_is_not_there_or_leads_elsewhere_is_told(tmp_path: Path) -> None:
    for name in ("outside", "root"):
        (tmp_path / name).mkdir()
    with_and_without_critic(tmp_path / "outside" / "mine")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "outside" / "mine")
    client = TestClient(create_app(tmp_path / "root"))
    for name in ("linked", "none", ".."):
        assert client.get(f"/api/comparisons/{name}").status_code == 404
