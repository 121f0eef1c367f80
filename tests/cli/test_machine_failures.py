"""What the machine refuses is one sentence and code 2; a terminal that goes away does not end a run."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from forked import command, forked
from small_runs import ROWS, assert_same_run, grouprl, small_settings, write_rows

REWARD = "def length(completions, **columns):\n    return [float(len(text)) for text in completions]\n"


def arguments(tiny: Path, folder: Path, **changes: object) -> list[str]:
    (folder / "mine.py").write_text(REWARD)
    rows = write_rows(folder / "rows.jsonl", ROWS)
    reward = f"--reward={folder}/mine.py:length"
    return ["train", f"--model={tiny}", reward, "task=jsonl", f"task.path={rows}", *small_settings(folder, **changes)]


def one_sentence(*given: str) -> str:
    ended = grouprl(*given)
    assert ended.code == 2, ended.text
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.text
    return ended.text


def test_an_absurd_size_is_one_sentence() -> None:
    for change, most in {
        "model.threads=100000": 1024, "rollout.scoring.seconds=1e300": 86400,
        "rollout.max_tokens=99999999999": 10000000, "steps=999999999999": 1000000000,
    }.items():  # fmt: skip
        said = f"{change.partition('=')[0]}: expected less than or equal to {most}"
        assert said in one_sentence("train", "demo", change)


def test_a_damaged_database_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    assert grouprl(*arguments(tiny, tmp_path, steps=1)).code == 0
    (tmp_path / "run" / "rollouts.sqlite").write_bytes(b"no database at all" * 100)
    said = one_sentence("train", "--resume", f"runs_dir={tmp_path}", "steps=2")
    assert "the database of the run: file is not a database: restore it" in said


def test_a_locked_database_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object) -> None:
        first, second = (sqlite3.connect(tmp_path / "a.sqlite", timeout=0.01) for _ in range(2))
        first.execute("BEGIN EXCLUSIVE")
        second.execute("CREATE TABLE a (b)")

    (tmp_path / "config.yaml").touch()
    monkeypatch.setattr("grouprl.lab.report.write.write_report", locked)
    assert "locked by another program" in one_sentence("report", str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    given = arguments(tiny, tmp_path)
    (tmp_path / "run").mkdir(mode=0o500)
    assert "Permission denied" in one_sentence(*given)


def test_a_full_disk_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    # A file may have 20 KB: the database of a run does not fit.
    train = command(*arguments(tiny, tmp_path))

    def on_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, 20 << 10))
        train()

    with forked(on_a_full_disk) as run:
        said = run.err.read()
        assert run.wait() == 2, said
    assert said.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in said


@pytest.mark.parametrize("output", ["| head -n 1", "> /dev/full", ">&-"])
@pytest.mark.slow
def test_a_run_continues_without_its_output(tiny: Path, tmp_path: Path, output: str) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    assert grouprl(*arguments(tiny, whole)).code == 0
    words = " ".join(map(repr, arguments(tiny, cut)))
    command = f"set -o pipefail; {sys.executable} -m grouprl {words} {output}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert_same_run(whole / "run", cut / "run")
