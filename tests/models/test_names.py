"""A model that is not there: the answer comes before torch is loaded, and names what is near."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grouprl import UserError
from grouprl.models.names import check_name

NO_TORCH = "import sys; from grouprl.cli.words import main; sys.argv = ['grouprl', *sys.argv[1:]]\ntry: main()\n"
NO_TORCH += "finally: print('torch' in sys.modules, 'transformers' in sys.modules)"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("abcus", "no such folder, no cached copy and no network: did you mean 'abacus'?"),
        ("someone/nothing", "no such folder, no cached copy and no network: check the name"),
        ("a name", "check the name"),
        ("./nope", "no such folder: check the path"),
        ("runs/dem", "no such folder: did you mean runs/demo?"),
        ("runs/demo/checkpoints/step-2", "no such folder: did you mean runs/demo/checkpoints/step-000002?"),
        ("runs", "one without config.json"),
    ],
)
def test_what_is_not_there_is_named(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grouprl.received.hub._OFFLINE", True)
    Path("runs/demo/checkpoints/step-000002").mkdir(parents=True)
    with pytest.raises(UserError) as refused:
        check_name(name)
    assert str(refused.value).endswith(words) or words in str(refused.value)


def test_what_is_there_is_accepted(tmp_path: Path):
    check_name("abacus")
    (tmp_path / "config.json").write_text("{}")
    check_name(str(tmp_path))


@pytest.mark.parametrize("words", [("eval", "abcus"), ("train", "model=abcus")])
def test_the_command_answers_before_it_loads_torch(words: tuple[str, ...], tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-c", NO_TORCH, *words],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no such folder" in ended.stderr
    assert ended.stdout.splitlines()[-1] == "False False"


def test_a_cached_model_is_accepted_whatever_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grouprl.received.hub._OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="no cached copy"):
        check_name("someone/something")
    (tmp_path / "models--someone--something" / "snapshots" / "0a1b").mkdir(parents=True)
    check_name("someone/something")
