"""The layout of a run directory is known in one module, and what that module says of it is right."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

import grouprl
from grouprl.record.layout import (
    WRITTEN_BY_A_RUN,
    RunDirectory,
    is_finished,
    lock_directory,
    model_at,
    run_at,
    run_of_checkpoint,
)
from grouprl.types import UserError

SRC = Path(grouprl.__file__).parent
NAMES = {
    *WRITTEN_BY_A_RUN,
    "run.lock",
    "forked.json",
    "state.json",
    "trainer",
    "rollouts.parquet",
    "console.txt",
    "notes.json",
}
# The folder of a comparison has a summary and plots of its own; "plots" and "checkpoints" are words as well, "trainer"
# is a section of verl's files, "trackers" one of ours.
OTHER = {
    "run/train.py": {"trackers"},
    "tools/compare/report.py": {"summary.json", "plots"},
    "tools/imported/read.py": {"trainer"},
    # Of a data set that `datasets` saved.
    "tasks/files.py": {"state.json"},
    "tasks/sources.py": {"state.json"},
}


def literals(path: Path) -> set[str]:
    """Every text constant of a module but its docstrings; none where it has no name of `NAMES`."""
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text))) if any(name in text for name in NAMES) else []
    strings = {node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    alone = {node.value for node in nodes if isinstance(node, ast.Expr)}
    keys = {key for node in nodes if isinstance(node, ast.Dict) for key in node.keys}
    return {node.value for node in strings - alone - keys}


def save(run: Path, step: int) -> Path:
    checkpoint = RunDirectory(run).checkpoint(step)
    checkpoint.trainer.mkdir(parents=True)
    checkpoint.state.write_text("{}")
    return checkpoint.path


def test_no_other_module_names_a_file_of_a_run() -> None:
    named = {
        (place, name)
        for path in SRC.rglob("*.py")
        if (place := path.relative_to(SRC).as_posix()) != "record/layout.py"
        for name in literals(path) & NAMES - OTHER.get(place, set())
    }
    assert named == set()
    assert literals(SRC / "record" / "layout.py") >= NAMES - {*WRITTEN_BY_A_RUN} - {"run.lock"}


def test_every_path_is_in_the_directory_and_differs_from_the_others(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    paths = [value for name, value in vars(run).items() if name not in ("path", "line_files", "rollout_side_files")]
    assert {path.parent for path in paths} == {tmp_path}
    assert len(set(paths)) == len(paths) == 20
    assert [path.name for path in run.rollout_side_files] == [
        "rollouts.sqlite-wal",
        "rollouts.sqlite-shm",
        "rollouts.sqlite-journal",
    ]


def test_numbers_decide_the_order_of_checkpoints(tmp_path: Path) -> None:
    for step in (1_000_000, 999_999, 7):
        save(tmp_path, step)
    assert [checkpoint.step for checkpoint in RunDirectory(tmp_path).checkpoints()] == [7, 999_999, 1_000_000]
    assert RunDirectory(tmp_path).checkpoints()[-1].path.name == "step-1000000"


def test_only_complete_checkpoints_can_be_resumed_and_every_folder_holds_a_model(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.checkpoints() == run.saved_models() == ()
    whole, model = save(tmp_path, 1), save(tmp_path, 2)
    (model / "trainer" / "state.json").unlink()
    for leftover in ("step-000003.tmp", "step-000003.old", "step-best", "other"):
        (tmp_path / "checkpoints" / leftover / "trainer").mkdir(parents=True)
        (tmp_path / "checkpoints" / leftover / "trainer" / "state.json").write_text("{}")
    assert [checkpoint.path for checkpoint in run.checkpoints()] == [whole]
    assert [checkpoint.path for checkpoint in run.saved_models()] == [whole, model]


@pytest.mark.parametrize(
    ("summary", "steps", "finished"),
    [
        ({}, 3, False),
        ({"steps": 3, "before": {}}, 3, False),  # stopped on request, or before the last evaluation
        ({"steps": 3, "after": {}}, 3, True),
        ({"steps": 3, "after": None}, 3, False),
        ({"steps": 3, "after": {}}, 4, False),  # resumed with more steps
        ({"steps": 5, "after": {}}, 4, True),
        ({"steps": 3, "after": {}}, None, True),
        ({"steps": "3", "after": {}}, 3, False),
    ],
)
def test_a_finished_run_has_made_its_steps_and_the_evaluation_after_them(
    tmp_path: Path, summary: dict[str, object], steps: int | None, finished: bool
) -> None:
    assert is_finished(summary, steps) is finished
    run = RunDirectory(tmp_path)
    run.summary.write_text(json.dumps(summary))
    assert run.is_finished(steps) is finished
    assert run.status(summary, steps) == ("finished" if finished else "stopped")


def test_a_run_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.holder() is None
    handle = lock_directory(tmp_path)
    assert run.holder() == os.getpid()
    assert run.status({"steps": 3, "after": {}}, 3) == "running"
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        lock_directory(tmp_path)
    os.close(handle)
    assert run.holder() is None


def test_the_newest_step_is_the_last_whole_line(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.newest_metrics() == {}
    run.metrics.write_text("".join(json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(1, 2000)))
    assert run.newest_metrics() == {"step": 1999, "reward": 0.5}
    with run.metrics.open("a") as lines:
        lines.write('{"step": 2000, "rew')
    assert run.newest_metrics()["step"] == 1999


def test_the_run_of_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1)
    assert run_of_checkpoint(checkpoint) is None
    (tmp_path / "config.yaml").write_text("steps: 3\n")
    found = run_of_checkpoint(checkpoint)
    assert found is not None
    assert found.path == tmp_path.resolve()
    assert RunDirectory(tmp_path).exists
    assert run_of_checkpoint(tmp_path / "owner" / "name") is None  # a hub id beside a configuration of one's own


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs/demo (steps 5 and 1000000), runs/sft (a model), runs/new (nothing saved), and a model."""
    for place in ("runs/demo/checkpoints/step-000005", "runs/demo/checkpoints/step-1000000", "runs/sft/model", "mine"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    (tmp_path / "runs" / "new").mkdir()
    for run in ("demo", "sft", "new"):
        (tmp_path / "runs" / run / "config.yaml").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("runs/demo", "runs/demo/checkpoints/step-1000000"),
        ("runs/demo/", "runs/demo/checkpoints/step-1000000"),
        ("./runs/demo", "runs/demo/checkpoints/step-1000000"),
        ("runs/demo/checkpoints/step-000005", "runs/demo/checkpoints/step-000005"),
        ("runs/sft", "runs/sft/model"),
        ("~/runs/sft", "{home}/runs/sft/model"),
        ("~/mine", "{home}/mine"),
        ("mine", "mine"),
        ("abacus", "abacus"),
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"),
    ],
)
def test_a_model_is_found(home: Path, given: str, found: str):
    assert model_at(given) == found.format(home=home)


def test_a_run_without_a_model_is_refused(home: Path):
    with pytest.raises(UserError, match="runs/new: expected a run with a checkpoint, got one without"):
        model_at("runs/new")


@pytest.mark.parametrize("given", ["runs/demo", "~/runs/demo", "runs/demo/checkpoints/step-000005"])
def test_a_run_is_found(home: Path, given: str):
    assert run_at(given).resolve() == home / "runs" / "demo"


@pytest.mark.parametrize(
    ("given", "near"),
    [("demo", "did you mean runs/demo?"), ("runs/Demo", "did you mean runs/demo?"), ("xyz", "give the folder")],
)
def test_a_run_that_is_not_there_has_a_neighbor(home: Path, given: str, near: str):
    with pytest.raises(UserError, match="expected a run directory") as refused:
        run_at(given)
    assert near in str(refused.value)
