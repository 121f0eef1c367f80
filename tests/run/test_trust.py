"""Code that somebody else's run names is not run; code, tokenizer and template that changed stop a resume."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from chat_server import ChatServer, scores
from grouprl.lab.processes import Processes
from grouprl.lab.runs import Runs
from grouprl.types import UserError
from small_runs import ROWS, grouprl, received, small_settings, write_rows
from tiny import tiny_model_folder

REWARD = """
from pathlib import Path

def evil(completions, **columns):
    (Path(__file__).parent / "ran").touch()
    return [float(len(text)) for text in completions]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """A folder with a code file, data, and a run of both by another user."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "their state"))
        (folder / "evil.py").write_text(REWARD)
        write_rows(folder / "rows.jsonl", ROWS)
        reward = f"{folder}/evil.py:evil"
        task = {"name": "jsonl", "path": str(folder / "rows.jsonl"), "arguments": {"verifier": reward}}
        brief = {"task": task, "steps": 1, "evaluation": {"problems": 1, "samples": 0}}
        ended = grouprl("train", f"--model={tiny}", "--reward", reward, *small_settings(folder, **brief))
    assert ended.code == 0, ended.text
    (folder / "ran").unlink()
    return folder


@pytest.fixture
def got(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return received(made, tmp_path / "got", monkeypatch)


def verbs(got: Path) -> dict[str, list[str]]:
    """Every verb that runs code which a run's config.yaml names."""
    checkpoint = str(got / "run" / "checkpoints" / "step-000001")
    return {
        "eval": ["eval", checkpoint, "--json"],
        "sample": ["sample", checkpoint],
        "resume": ["train", "--resume", f"runs_dir={got}", "steps=2"],
        "train": ["train", str(got / "run" / "config.yaml"), "name=other"],
        "check-reward": ["check-reward", str(got / "run" / "config.yaml"), "--problems", "2"],
        "compare": ["compare", str(got / "run" / "config.yaml"), f"runs_dir={got}", "--vary", "rollout.top_k=0,3"],
    }


@pytest.mark.parametrize("verb", ["eval", "sample", "resume", "train", "check-reward", "compare"])
def test_code_of_a_run_that_was_received_is_refused(got: Path, verb: str) -> None:
    ended = grouprl(*verbs(got)[verb])
    assert ended.code == 2
    assert f"names the code file {got / 'evil.py'}, which you have not run here" in ended.text
    assert f"--trust-code {got / 'evil.py'}" in ended.text
    assert "Traceback" not in ended.text
    assert not (got / "ran").exists()


@pytest.mark.parametrize("verb", ["eval", "resume"])
def test_code_that_the_user_trusts_by_name_is_run(got: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(got)
    ended = grouprl(*verbs(got)[verb], "--trust-code", "evil.py")
    assert ended.code == 0, ended.text
    assert (got / "ran").exists()
    assert (grouprl(*verbs(got)["eval"]).code == 0) == (verb == "resume")  # to train with it is to know it


def test_a_copy_of_known_code_elsewhere_is_not_known(got: Path, tmp_path: Path) -> None:
    # Beside the copy may lie another module, which it imports.
    assert grouprl(*verbs(got)["resume"], "--trust-code", got / "evil.py").code == 0
    moved = tmp_path / "moved"
    shutil.copytree(got, moved)
    config = moved / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(got), str(moved)))
    (moved / "ran").unlink()
    assert grouprl(*verbs(got)["eval"]).code == 0
    assert grouprl(*verbs(moved)["eval"]).code == 2
    assert not (moved / "ran").exists()


def test_other_settings_in_the_place_of_foreign_code_are_run(got: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def own(completions, **columns):\n    return [1.0] * len(completions)\n")
    rewards = json.dumps([{"name": "own", "path": str(own)}])
    ended = grouprl(*verbs(got)["sample"], f"rewards={rewards}", "task.arguments.verifier=think_format")
    assert ended.code == 0, ended.text
    assert "own 1.0" in ended.text


@pytest.mark.slow
def test_a_resume_in_the_lab_does_not_run_foreign_code(got: Path) -> None:
    runs = Runs(got)
    processes, run = Processes(runs), runs.identifier(got / "run")
    for start in (lambda: processes.resume(run, ["steps=2"]), lambda: processes.fork(run, 1, "fork", ["steps=2"])):
        with pytest.raises(UserError, match="which you have not run here"):
            start()
    assert not (got / "ran").exists()
    assert not (got / "fork").exists()


def test_a_run_records_the_digest_of_its_code(got: Path) -> None:
    code = json.loads((got / "run" / "code.json").read_text())
    assert list(code["files"].values()) == [sha256(REWARD.encode()).hexdigest()]
    assert len(code["tokenizer"]) == len(code["chat_template"]) == 64


def test_a_resume_with_a_changed_code_file_needs_its_name(got: Path) -> None:
    file, code = got / "evil.py", got / "run" / "code.json"
    assert grouprl(*verbs(got)["resume"], "--trust-code", file).code == 0
    file.write_text(REWARD + "# changed\n")
    longer = ["train", "--resume", f"runs_dir={got}", "steps=3"]
    assert f"names the code file {file}, which you have not run here in this form" in grouprl(*longer).text
    # A second run of the user makes the changed file known; it is still not what the first run was started with.
    assert grouprl(*verbs(got)["train"], "--trust-code", file).code == 0
    ended = grouprl(*longer)
    assert ended.code == 2
    assert f"expected {file} as it was when" in ended.text
    assert grouprl(*longer, "--trust-code", file).code == 0
    assert json.loads(code.read_text())["files"][str(file)] == sha256((REWARD + "# changed\n").encode()).hexdigest()


def test_a_resume_with_another_tokenizer_or_template_is_refused(tmp_path: Path) -> None:
    model = tiny_model_folder(tmp_path / "model")
    rows = write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "mine.py").write_text(REWARD)
    given = ["train", f"model.path={model}", "task=jsonl", f"task.path={rows}", f"--reward={tmp_path}/mine.py:evil"]
    assert grouprl(*given, *small_settings(tmp_path, steps=1)).code == 0
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    for what, name, text in (
        ("tokenizer", "tokenizer.json", json.dumps({**tokenizer, "normalizer": {"type": "Lowercase"}})),
        ("chat template", "chat_template.jinja", "{{ messages[0].content }}"),
    ):
        before = (model / name).read_text()
        (model / name).write_text(text)
        ended = grouprl("train", "--resume", f"runs_dir={tmp_path}", "steps=2", "--trust-code", tmp_path / "mine.py")
        assert ended.code == 2
        assert f"expected the {what} that" in ended.text
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics
        (model / name).write_text(before)


def test_a_cluster_of_a_run_that_was_received_is_not_connected_to(got: Path) -> None:
    config = got / "run" / "config.yaml"
    config.write_text(
        f"{config.read_text().partition('cluster:')[0]}cluster: {{backend: ray, address: '127.0.0.1:9'}}\n"
    )
    ended = grouprl(*verbs(got)["train"], "--trust-code", got / "evil.py")
    assert ended.code == 2
    assert "names the server 127.0.0.1:9, which none of your runs has used" in ended.text


def test_a_server_of_a_run_that_was_received_gets_nothing(got: Path, tmp_path: Path) -> None:
    """The configuration names the variable of the key too: an unknown server would be sent any secret by its name."""
    with ChatServer(lambda asked: scores(1.0)) as server:
        judge = {"name": "judge_model", "arguments": {"base_url": server.url, "model": "m"}}
        config = got / "run" / "config.yaml"
        mine = [str(config), f"rewards=[{json.dumps(judge)}]", "task.arguments.verifier=think_format"]
        assert grouprl("train", *mine, f"runs_dir={tmp_path}", "name=mine").code == 0
        asked = len(server.asked)
        shutil.copytree(tmp_path / "mine", tmp_path / "theirs")
        (tmp_path / "got state" / "grouprl" / "code.sha256").unlink()
        evaluated = ["eval", tmp_path / "theirs" / "checkpoints" / "step-000001", "--json"]
        ended = grouprl(*evaluated)
        assert ended.code == 2
        assert f"names the server {server.url}, which none of your runs has used" in ended.text
        assert len(server.asked) == asked > 0
        assert grouprl(*evaluated, "--trust-code", server.url).code == 0
        resume = ["train", "--resume", "name=theirs", f"runs_dir={tmp_path}", "steps=2", "--trust-code", server.url]
        assert grouprl(*resume).code == 0
        assert grouprl(*evaluated).code == 0
