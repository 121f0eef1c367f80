"""What the shell gets after TAB, asked as bash asks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grouprl.cli import completion


def offered(words: str, folder: Path) -> list[str]:
    """The words that bash would show after `words`, whose last one may be empty."""
    asked = {"_GROUPRL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = "import sys; sys.argv[0] = 'grouprl'; from grouprl.cli import app; app(prog_name='grouprl')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **asked, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.yaml").write_text("steps: 3\n")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yaml").write_text("steps: 3\n")
    (tmp_path / "runs" / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bash_gets_the_keys_of_a_section(folder: Path) -> None:
    keys = ["rollout.engine.address=", "rollout.engine.addresses="]
    assert offered("grouprl train demo rollout.engine.a", folder) == keys


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("offers", "typed", "expected"),
    [
        (completion.settings, "algorithm.clip_h", ["algorithm.clip_high="]),
        (completion.settings, "dem", ["demo"]),
        (completion.settings, "mi", ["mine.yaml"]),
        (completion.settings, "nothing", []),
        (completion.keys, "rollout.group", ["rollout.group_size"]),
        (completion.keys, "checkp", ["checkpoint", "checkpoint.every", "checkpoint.keep"]),
        (completion.models, "", ["abacus", "abacus_chains", "abacus_tools", "runs/mine"]),
        (completion.runs, "", ["runs/mine"]),
        (completion.runs, "runs/", ["runs/mine"]),
        (completion.runs, "gone/x", []),
        (completion.tasks, "co", ["code", "countdown"]),
    ],
)
def test_what_fits_is_offered(offers: Callable[[str], list[completion.Offer]], typed: str, expected: list[str]) -> None:
    assert [word for word, _ in offers(typed)] == expected
