"""Games and agents that answer at random times, and runs of them that are killed, end with one result."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from small_runs import metrics

SUPPORT = Path(__file__).parents[1] / "support"
RUNS = 5  # of each shape, with and without kernels

Make = Callable[..., int]


@pytest.fixture(scope="module")
def make(tiny: Path) -> Iterator[Make]:
    """Makes or resumes a run in a process of its own; gives its exit status."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    with subprocess.Popen(
        [sys.executable, SUPPORT / "late_runs.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None

        def make(runs: Path, *settings: Any) -> int:
            print(json.dumps([str(tiny), str(runs), *settings]), file=server.stdin, flush=True)
            return int(server.stdout.readline())

        yield make
        server.stdin.close()


def digest(run: Path) -> str:
    """Of metrics and weights."""
    found = hashlib.sha256(json.dumps(metrics(run)).encode())
    (weights,) = run.glob("checkpoints/step-000004/**/model.safetensors")
    found.update(weights.read_bytes())
    return found.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["", "off"], ids=["kernels", "modules"])
@pytest.mark.parametrize("shape", ["game", "agent"])
def test_a_run_does_not_depend_on_when_answers_come_nor_on_kills(shape: str, kernels: str, make: Make, tmp_path: Path):
    digests, killed = set(), 0
    for number in range(RUNS):
        runs = tmp_path / str(number) / "runs"
        runs.mkdir(parents=True)
        for kill_after in (1, 2, 0) if number else (0,):
            status = make(runs, shape, kernels, 1 + number % 2, kill_after)
            assert status in ((0, -9) if kill_after else (0,))
            killed += status == -9
        digests.add(digest(runs / "run"))
    assert len(digests) == 1
    assert killed >= RUNS
