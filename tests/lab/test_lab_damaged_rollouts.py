"""A rollouts.sqlite that anybody may have changed: each route says what is wrong, in a moment."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from grouprl.algorithms.named import NAMED
from grouprl.config.algorithm import options
from grouprl.lab.report.worked import Spread, exact_sum
from grouprl.lab.server import create_app
from grouprl.record.read import read_rollouts
from grouprl.types import UserError
from lab_runs import CONFIG, Made, make_run

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
