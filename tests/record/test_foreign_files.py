"""The files of one run that are copied into another are noticed, and nothing of that run is changed."""

import json
import shutil
from pathlib import Path

import pytest

from grouprl import UserError
from grouprl.lab.runs import Runs
from grouprl.record.files import json_text
from grouprl.record.layout import RunDirectory
from grouprl.record.read import Example, read_examples, read_json_lines, read_run, read_summary
from grouprl.record.write import RunRecord
from lab_runs import FULL_CONFIG

NAMES = ["evaluations.jsonl", "held_out.jsonl", "examples.json", "summary.json"]


def make(folder: Path, run: str | None) -> Path:
    with RunRecord.create(folder, FULL_CONFIG) as record:
        if run is not None:
            (folder / "code.json").write_text(json_text({"run": run}))
        record.held_out(0, {"correct": [1]})
        record.examples("before", [Example("p", "2 + 2", "4", "5", False)])
        record.evaluation(0, {"greedy_accuracy": 0.5})
        record.summary({"steps": 0})
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_another_run_is_noticed(tmp_path: Path, name: str) -> None:
    run, other = make(tmp_path / "run", "a" * 16), make(tmp_path / "other", "b" * 16)
    shutil.copy(other / name, run / name)
    said = f"{name}.*expected a record of this run \\({'a' * 16}\\), got one of the run '{'b' * 16}'"
    with pytest.raises(UserError, match=said):
        read_run(run)
    before = {path.name: path.read_bytes() for path in run.glob("*.json*")}
    if name != "summary.json":  # which a resume reads first, see `made_steps`
        with pytest.raises(UserError, match=said):
            RunRecord.reopen(run, 0)
    assert {path.name: path.read_bytes() for path in run.glob("*.json*")} == before
    if name == "evaluations.jsonl":
        with pytest.raises(UserError, match=said):
            Runs(tmp_path).evaluations(run)


def test_a_line_of_another_run_between_lines_without_one_is_noticed(tmp_path: Path) -> None:
    path = RunDirectory(make(tmp_path / "run", "a" * 16)).evaluations
    path.write_text(f'{{"step": 0}}\n{{"step": 1, "run": "{"b" * 16}"}}\n')
    with pytest.raises(UserError, match="jsonl:2: expected a record of this run"):
        read_json_lines(path)


def test_files_of_the_run_itself_are_read_without_its_id(tmp_path: Path) -> None:
    for run in (make(tmp_path / "run", "a" * 16), make(tmp_path / "old", None)):
        files = RunDirectory(run)
        assert read_json_lines(files.evaluations) == ({"step": 0, "greedy_accuracy": 0.5},)
        assert (read_summary(run), [*read_examples(files.examples)]) == ({"steps": 0}, ["before"])
        lines = files.evaluations.read_text()
        assert json.loads(lines).get("run") == (None if run.name == "old" else "a" * 16)
        RunRecord.reopen(run, 0).close()
        assert files.evaluations.read_text() == lines  # the same bytes after a resume
