"""Runs that the lab starts as processes of their own, small enough for a test."""

import time
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from grouprl.record.layout import RunDirectory

# Seconds instead of a minute: 2 problems x 4 completions of at most 8 tokens.
QUICK = [
    "model.threads=1", "rollout.problems_per_step=2", "rollout.group_size=4", "rollout.max_tokens=8",
    "evaluation.problems=2", "evaluation.samples=1", "checkpoint.every=1", "checkpoint.keep=100",
    "rollout.scoring.workers=1",
]  # fmt: skip


def ended(directory: Path, *, after: float = 60.0) -> None:
    """Waits until nobody has the directory."""
    until = time.monotonic() + after
    while RunDirectory(directory).holder() is not None:
        assert time.monotonic() < until, "the run has not ended"
        time.sleep(0.05)


def started(client: TestClient, name: str, *changes: str) -> Any:
    body = {"recipe": "demo", "name": name, "changes": [*QUICK, *changes]}
    answer = client.post("/api/runs", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
