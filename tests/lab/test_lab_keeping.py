"""Tags, notes, names and the end of runs from the page; prompts that are searched; a completion that is tried."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from grouprl.files import read_json
from grouprl.lab import trying
from grouprl.lab.server import create_app
from grouprl.record.layout import lock_directory
from grouprl.types import UserError
from lab_processes import ended, started
from lab_runs import Made, make_run
from small_runs import tree


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for name in ("one", "two", "both/grpo"):
        make_run(folder / name, [Made((1.0, 0.0))])
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


def line(client: TestClient, run: str) -> dict[str, Any]:
    (found,) = (one for one in client.get("/api/runs").json()["runs"] if one["id"] == run)
    return dict(found)


def refusal(client: TestClient, path: str, **body: Any) -> str:
    answer = client.post(f"/api/runs/{path}", json=body)
    assert answer.status_code in (400, 404), answer.text
    return str(answer.json()["error"])


def test_notes_are_kept_beside_the_run(client: TestClient, root: Path) -> None:
    given = {"tags": ["best", "long", "best"], "note": "kl 0\n<b>", "archived": True}
    assert client.post("/api/runs/one/notes", json=given).json() == {"id": "one"}
    assert read_json(root / "one" / "notes.json") == {**given, "tags": ["best", "long"]}
    shown = line(client, "one")
    assert (shown["tags"], shown["note"], shown["archived"]) == (["best", "long"], "kl 0\n<b>", True)
    assert (line(client, "two")["tags"], line(client, "two")["archived"]) == ([], False)
    (root / "one" / "notes.json").write_text('{"tags": 3}')
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
def test_notes_that_are_none_change_nothing(
    client: TestClient, root: Path, changed: dict[str, Any], error: str
) -> None:
    before = tree(root)
    assert error in refusal(client, "one/notes", **{"tags": [], "note": "", "archived": False, **changed})
    assert tree(root) == before


def test_a_renamed_run_has_everything_under_its_new_name(client: TestClient, root: Path) -> None:
    before = {name: data for name, data in tree(root / "one").items() if name != "config.yaml"}
    assert client.post("/api/runs/one/rename", json={"name": "three"}).json() == {"id": "three"}
    assert not (root / "one").exists()
    after = tree(root / "three")
    assert {name: after[name] for name in before} == before
    assert yaml.safe_load((root / "three" / "config.yaml").read_text())["name"] == "three"


def test_a_name_that_is_taken_or_none_is_refused(client: TestClient, root: Path) -> None:
    before = tree(root)
    for name in ("two", "../out", "", "a/b"):
        assert refusal(client, "one/rename", name=name)
        assert tree(root) == before


def test_deleting_takes_the_name_of_the_run(client: TestClient, root: Path) -> None:
    before, other = tree(root / "one"), tree(root / "two")
    assert "expected the run's name, one" in refusal(client, "one/delete", name="two")
    assert tree(root / "one") == before
    assert client.post("/api/runs/one/delete", json={"name": "one"}).json() == {"id": "one"}
    assert not (root / "one").exists()
    assert [*(root / ".lab").glob("*")] == []
    assert tree(root / "two") == other


@pytest.mark.parametrize(("what", "name"), [("rename", "b"), ("delete", None)])
def test_a_run_that_is_written_or_part_of_a_comparison_stays(
    client: TestClient, root: Path, what: str, name: str | None
) -> None:
    handle = lock_directory(root / "one")
    try:
        assert f"in use by process {os.getpid()}" in refusal(client, f"one/{what}", name=name or "one")
    finally:
        os.close(handle)
    assert "got a run of the comparison both" in refusal(client, f"both~grpo/{what}", name=name or "grpo")
    assert "expected a run below" in refusal(client, f"nobody/{what}", name=name or "nobody")
    assert all((root / run / "config.yaml").exists() for run in ("one", "both/grpo"))


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
