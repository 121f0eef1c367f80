"""What a user may call a run or a model, in one place for every verb and setting."""

from pathlib import Path

import pytest

from grouprl.record.layout import model_at, run_at
from grouprl.types import UserError


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
