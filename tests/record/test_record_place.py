"""Where a run may be recorded: nothing that another run recorded is overwritten, and one process has a directory."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from grouprl.record.write import RunRecord
from grouprl.types import UserError
from recorded_steps import CONFIG, record_steps
from small_runs import rollouts


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        record_steps(record, range(1, 4))
    return tmp_path / "run"


def test_create_refuses_a_directory_with_a_run_and_changes_nothing(run: Path) -> None:
    kept = {path.name: path.read_bytes() for path in run.iterdir() if path.name != "run.lock"}
    with pytest.raises(UserError, match=r"already holds a run \(config.yaml, .*--resume.*another name"):
        RunRecord.create(run, "task: other\n")
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.name != "run.lock"} == kept
    RunRecord.reopen(run, 3).close()  # the refusal let go of the lock


def test_create_takes_an_empty_directory_and_refuses_a_file(tmp_path: Path) -> None:
    RunRecord.create(tmp_path, CONFIG).close()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="cannot be made a run directory"):
        RunRecord.create(tmp_path / "file", CONFIG)
    assert (tmp_path / "file").read_text() == "mine"


def test_create_takes_the_place_of_a_run_that_recorded_nothing(tmp_path: Path) -> None:
    RunRecord.create(tmp_path, "task: gone\n").close()
    with RunRecord.create(tmp_path, CONFIG) as record:
        assert (tmp_path / "config.yaml").read_text() == CONFIG
        record_steps(record, range(1, 2))
    with pytest.raises(UserError, match=r"already holds a run \(config.yaml, metrics.jsonl, rollouts.sqlite\)"):
        RunRecord.create(tmp_path, "task: other\n")


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "evaluations.jsonl", "held_out.jsonl", "examples.json", "summary.json", "checkpoints"]
)
def test_create_leaves_a_run_that_recorded_anything_alone(tmp_path: Path, name: str) -> None:
    RunRecord.create(tmp_path, "task: mine\n").close()
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match="already holds a run"):
        RunRecord.create(tmp_path, CONFIG)
    assert (tmp_path / "config.yaml").read_text() == "task: mine\n"


def test_create_leaves_a_step_without_metrics_and_a_foreign_file_alone(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").unlink()  # killed between the two writes of its first step
    with pytest.raises(UserError, match="already holds a run"):
        RunRecord.create(run, CONFIG)
    assert rollouts(run, "SELECT COUNT(*) FROM completions") == [(12,)]
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(UserError, match="already holds a run"):
        RunRecord.create(tmp_path, CONFIG)
    (tmp_path / "rollouts.sqlite").write_text("no database " * 100)
    with pytest.raises(UserError, match="already holds a run"):
        RunRecord.create(tmp_path, CONFIG)
    assert (tmp_path / "config.yaml").read_text() == "mine"


def test_a_database_of_something_else_is_not_touched(run: Path) -> None:
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database:
        database.execute("ALTER TABLE completions DROP COLUMN correct")
    kept = {path.name: path.read_bytes() for path in run.iterdir() if path.name != "run.lock"}
    for _ in range(2):  # the refusal let go of the lock
        with pytest.raises(UserError, match=r"rollouts.sqlite: expected .* columns correct, found none: restore"):
            RunRecord.reopen(run, 1)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.name != "run.lock"} == kept


def test_a_directory_in_use_names_the_process_that_has_it(run: Path) -> None:
    code = "import sys, pathlib, grouprl.record.write as lab; lab.RunRecord.reopen(pathlib.Path(sys.argv[1]), 3)"
    with RunRecord.reopen(run, 3):
        other = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False)
        assert f"run directory in use by process {os.getpid()};" in other.stderr
        with pytest.raises(UserError, match="in use"):
            RunRecord.create(run, CONFIG)
    assert subprocess.run([sys.executable, "-c", code, str(run)], check=False).returncode == 0
