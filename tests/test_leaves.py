"""A leaf can be cut off: without its folder a run computes the same bits, and what asks for it says what is missing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import letter_rewards
from grouprl.leaves import PLACES
from small_runs import ROWS, small_settings, write_rows
from source_tree import SRC

# Of each leaf: settings that ask for it, or another verb, and what is said then.
ASKED = {
    "problems": (("--reward", "repetition"), "reward.repetition: expected the folder grouprl/problems"),
    "terms": (("algorithm=ppo",), "term.critic: expected the folder grouprl/terms"),
    "received": ((), "received.files: expected the folder grouprl/received"),
    "lean": (("learner.moments=8bit",), "moments: expected the folder grouprl/lean"),
    "supervised": (("sft",), "supervised.sft: expected the folder grouprl/supervised"),
    "kernels": ((), "the folder grouprl/kernels is missing"),
    "engines": (
        ("rollout.engine.name=vllm", "rollout.engine.address=http://127.0.0.1:9"),
        "engine.vllm: expected the folder grouprl/engines",
    ),
    "environments": (("environment.factory=any.py:Game",), "conversations: expected the folder grouprl/environments"),
    "checks": (("--reward", "unit_tests"), "reward.unit_tests: expected the folder grouprl/checks"),
    "lab": ((), "none, because the folder grouprl/lab is missing"),
    "tools": (("trackers.names=[tensorboard]",), "trackers: expected the folder grouprl/tools"),
    "cli": ((), "cli: expected the folder grouprl/cli"),
    "trl": ((), ""),  # scripts import it themselves
}

FROM_PYTHON = """
import sys
from pathlib import Path
from grouprl import Trainer
from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
Trainer(config=load_config(RunConfig, [Path(sys.argv[1])], ["name=cli"])).train()
"""


def command(folder: Path, tiny: Path, name: str, *more: str) -> list[str]:
    """`grouprl train`, as the command line calls it."""
    settings = [str(one) for one in small_settings(folder / "runs", steps=2, name=name)]
    reward = f"{letter_rewards.__file__}:letters"
    given = ["--model", str(tiny), "--task", str(folder / "rows.jsonl"), "--reward", reward]
    return ["-m", "grouprl", "train", *given, *settings, *more]


def run(package: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """A Python process with this copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "GROUPRL_KERNELS": "off"}
    if not (package / "grouprl" / "kernels").exists():
        del environment["GROUPRL_KERNELS"]
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)


def bits(run_directory: Path) -> str:
    """A hash of the last weights and of what was recorded of the steps."""
    digest = hashlib.sha256((run_directory / "checkpoints" / "step-000002" / "model.safetensors").read_bytes())
    for line in (run_directory / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        digest.update(repr([row.get(name) for name in ("reward", "loss", "kl", "entropy", "grad_norm")]).encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("leaves")
    write_rows(folder / "rows.jsonl", [{**row, "answer": "1"} for row in ROWS])
    ended = run(SRC.parent, command(folder, tiny, "whole"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder, bits(folder / "runs" / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("leaf", [name for name in ASKED if name != "received"])
def test_a_leaf_can_be_cut_off(leaf: str, whole: tuple[Path, str], tiny: Path, tmp_path: Path):
    folder, expected = whole
    shutil.copytree(SRC, tmp_path / "grouprl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "grouprl" / leaf)
    words = command(folder, tiny, leaf)
    if leaf == "cli":  # the trunk is called from Python
        words = ["-c", FROM_PYTHON, str(folder / "runs" / "whole" / "config.yaml")]
    ended = run(tmp_path, words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert bits(folder / "runs" / leaf) == expected
    asked, said = ASKED[leaf]
    if asked or leaf == "cli":
        words = command(folder, tiny, f"{leaf}-asked", *asked)
        ended = run(tmp_path, ["-m", "grouprl", "sft"] if asked == ("sft",) else words)
        assert ended.returncode == 2
    assert said in " ".join((ended.stdout + ended.stderr).split())


@pytest.mark.slow
def test_the_bundled_model_trains_without_the_checks_of_strangers(whole: tuple[Path, str], tiny: Path, tmp_path: Path):
    """And a model in a folder, which those check, is not loaded."""
    folder, abacus = whole[0], Path("abacus")
    ended = run(SRC.parent, command(folder, abacus, "bundled"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shutil.copytree(SRC, tmp_path / "grouprl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "grouprl" / "received")
    ended = run(tmp_path, command(folder, abacus, "received"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert bits(folder / "runs" / "received") == bits(folder / "runs" / "bundled")
    ended = run(tmp_path, command(folder, tiny, "folder"))
    assert ended.returncode == 2
    assert ASKED["received"][1] in " ".join((ended.stdout + ended.stderr).split())


@pytest.mark.slow
def test_each_term_says_that_its_leaf_is_missing(whole: tuple[Path, str], tiny: Path, tmp_path: Path):
    shutil.copytree(SRC, tmp_path / "grouprl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "grouprl" / "terms")
    for setting, term in (("distill_coef", "distill"), ("router_aux_coef", "router")):
        ended = run(tmp_path, command(whole[0], tiny, term, f"algorithm.{setting}=0.1"))
        assert ended.returncode == 2
        assert f"term.{term}: expected the folder grouprl/terms" in " ".join((ended.stdout + ended.stderr).split())


def test_every_place_is_there():
    """And in a leaf: a name that nothing stands behind would be found when a user asks for it."""
    assert {place.partition(":")[0].split(".")[1] for place in PLACES.values()} <= set(ASKED)
    for place in PLACES.values():
        module, _, member = place.partition(":")
        path = SRC.joinpath(*module.split(".")[1:])
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        assert file.exists(), place
        assert not member or member in file.read_text(encoding="utf-8"), place
