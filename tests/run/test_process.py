"""A run that is started as a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from grouprl.record.layout import RunDirectory
from grouprl.run.process import start_run

ECHO = """#!{python}
import json, os, sys
said = {{"words": sys.argv[1:], "session": os.getsid(0), "typed": sys.stdin.read(), "cwd": os.getcwd()}}
print(json.dumps(said), flush=True)  # before the other line, where standard output is buffered too
print("and what goes wrong", file=sys.stderr)
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of Python: a program that prints what it was called with."""
    program = tmp_path / "python"
    program.write_text(ECHO.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("resume", [False, True])
def test_the_command_its_session_and_its_log(tmp_path: Path, resume: bool) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    process = start_run(RunDirectory(tmp_path / "a folder" / "007"), ["demo", "steps=3"], log, resume=resume)
    assert process.wait(30) == 0
    before, said, wrong = log.read_text().splitlines()
    assert (before, wrong) == ("before", "and what goes wrong")
    found = json.loads(said)
    assert found["words"] == [
        *("-P", "-m", "grouprl", "train"),
        *(["--resume"] if resume else []),
        *("--", "demo", "steps=3", 'name="007"', f'runs_dir="{tmp_path}/a folder"'),
    ]
    assert found["session"] not in (os.getsid(0), 0)
    assert (found["typed"], found["cwd"]) == ("", os.getcwd())


def test_a_mistake_in_the_settings_ends_it_with_a_sentence_whatever_lies_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    process = start_run(RunDirectory(tmp_path / "run"), ["demo", "stepz=3"], tmp_path / "log")
    assert process.wait(120) == 2
    assert "stepz" in (tmp_path / "log").read_text()
    assert not (tmp_path / "run").exists()
