"""Runs small enough for a test: problems, a reward with signal for a random model, the command line, folders."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import typer.main
from safetensors.torch import load_file

from grouprl import Run, Trainer, WeightedReward
from grouprl.cli import main
from grouprl.config.run import RunConfig
from letter_rewards import InProcess

ROWS = [{"prompt": f"Say {number}.", "number": number} for number in range(30)]

# A run of 0.3 s: 6 steps of 2 problems with 4 completions of at most 8 tokens.
SMALL: dict[str, Any] = {
    "steps": 6,
    "model": {"threads": 1},
    "rollout": {"problems_per_step": 2, "group_size": 4, "max_tokens": 8},
    "learner": {"learning_rate": 0.01},
    "evaluation": {"problems": 3, "samples": 2},
}


def small_config(runs: Path, name: str = "run", **changes: Any) -> RunConfig:
    """Further settings replace whole sections; `model` adds to the one thread."""
    model = {**SMALL["model"], **changes.pop("model", {})}
    return RunConfig(**{**SMALL, "name": name, "runs_dir": str(runs), "model": model, **changes})


def small_settings(runs: Path, **changes: Any) -> list[str]:
    """The same as arguments of the command line."""
    sections = {key: value for key, value in SMALL.items() if key not in changes}
    if "model" in changes:  # a model by name keeps the one thread
        sections["model.threads"] = 1
    return [f"{key}={json.dumps(value)}" for key, value in {**sections, "runs_dir": str(runs), **changes}.items()]


LETTERS = WeightedReward("letters", InProcess(lambda _: None))


def small_run(
    model: Path, config: RunConfig, algorithm: Any = None, *, resume: bool = False, step: int | None = None
) -> Run:
    """A run of `ROWS` and `LETTERS`."""
    return Trainer(model, ROWS, [LETTERS], algorithm, config).train(resume=resume, step=step)


def gsm8k_row(number: int, **change: Any) -> dict[str, Any]:
    solution = f"He has {number} + 1 = <<{number}+1={number + 1}>>{number + 1} pens.\n#### {number + 1}"
    return {"question": f"Ben has {number} pens and buys 1 more. How many?", "answer": solution, **change}


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# Typer makes the commands of all verbs anew for each call, which takes 0.03 s.
typer.main.get_command = cache(typer.main.get_command)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    out: str
    err: str

    @property
    def text(self) -> str:
        """Everything it wrote, line breaks and runs of spaces as one space."""
        return " ".join((self.out + self.err).split())


def grouprl(*arguments: object) -> Ended:
    """`grouprl ARGUMENTS` in this process: the imports of a new one take seconds."""
    out, err = io.StringIO(), io.StringIO()
    with patch.object(sys, "argv", ["grouprl", *map(str, arguments)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code
    return Ended(code, out.getvalue(), err.getvalue())


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file under a folder with its bytes, every folder as None; without the lock, which names a process."""
    paths = [path for path in folder.rglob("*") if path.name != "run.lock"]
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def metrics(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what depends on the machine's speed."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = ("time/", "tokens_per_second", "rss_mib")
    return [{name: value for name, value in row.items() if not name.startswith(clock)} for row in rows]


def rollouts(run: Path, query: str = "SELECT * FROM completions ORDER BY 1, 2, 3") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database:
        return database.execute(query).fetchall()


def checkpoint_names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def as_killed(run: Path, copy: Path, *, after: int) -> Path:
    """A copy of a run as a kill leaves it after the checkpoint of a step."""
    shutil.copytree(run, copy)
    (copy / "summary.json").unlink()
    for name in checkpoint_names(copy):
        if int(name[5:]) > after:
            shutil.rmtree(copy / "checkpoints" / name)
    return copy


def received(run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run in another place, with its new paths, and a user who ran nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", f"{folder} state")
    shutil.copytree(run, folder)
    config = folder / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(run), str(folder)))
    return folder


def assert_same_weights(left: Path, right: Path) -> None:
    """Two checkpoint folders hold bit-identical weights and optimizer states."""
    for file in ("model.safetensors", "trainer/optimizer.safetensors"):
        ours, theirs = load_file(left / file), load_file(right / file)
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def assert_same_run(left: Path, right: Path, step: int = 6) -> None:
    """Two run directories hold the same run, times apart."""
    folder = f"checkpoints/step-{step:06d}"
    assert_same_weights(left / folder, right / folder)
    assert metrics(left) == metrics(right)
    for query in ("SELECT * FROM completions ORDER BY 1, 2, 3", "SELECT * FROM problems ORDER BY 1"):
        assert rollouts(left, query) == rollouts(right, query)
    ours, theirs = (json.loads((run / "summary.json").read_text()) for run in (left, right))
    for figure in ("before", "after", "steps", "completion_tokens"):
        assert ours[figure] == theirs[figure]
    examples = [json.loads((run / "examples.json").read_text()) for run in (left, right)]
    for recorded in examples:  # the id depends on the paths of a run's files
        recorded.pop("run", None)
    assert examples[0] == examples[1]


def assert_almost_same_run(left: Path, right: Path) -> None:
    """Equal but for the rounding of sums: the same tokens, and metrics near each other."""
    ours, theirs = metrics(left), metrics(right)
    assert [row["loss"] for row in theirs] == pytest.approx([row["loss"] for row in ours], abs=1e-5)
    assert [row["grad_norm"] for row in theirs] == pytest.approx([row["grad_norm"] for row in ours], rel=1e-3)
    ids = "SELECT step, group_index, completion_index, token_ids FROM completions ORDER BY 1, 2, 3"
    assert rollouts(left, ids) == rollouts(right, ids)
