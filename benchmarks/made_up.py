"""A comparison that never ran: run directories with invented metrics, for scripts that show comparisons."""

from __future__ import annotations

import json
from pathlib import Path

from grouprl.record.write import RunRecord
from grouprl.tools.compare.read import COMPARISON_FILE
from grouprl.types import StepRecord

VARIANTS = ("grpo", "dr_grpo")
SEEDS = (0, 1)


def made_up_comparison(place: Path) -> Path:
    """Two variants with two seeds each: two steps, evaluated before, between and after on four problems."""
    folder = place / "made_up"
    folder.mkdir()
    given = {"seeds": SEEDS, "variants": {name: [f"algorithm={name}"] for name in VARIANTS}, "baseline": None}
    (folder / COMPARISON_FILE).write_text(json.dumps(given))
    for at, name in enumerate(VARIANTS):
        for seed in SEEDS:
            _record(folder / f"{name}-seed{seed}", better=at)
    return folder


def _record(directory: Path, better: int) -> None:
    with RunRecord.create(directory, "seed: 0\n") as run:
        for step in (1, 2):
            times = {"completion_tokens": 100 * step, "time/total": 1.0, "time/rollout": 0.5}
            run.step(StepRecord(step, {"reward": step / 2, "accuracy": 0.4 * step, **times}, (), (), ()))
        rows = []
        for step in range(3):
            right = [int(problem < step + better) for problem in range(4)]
            rows.append({"greedy_accuracy": sum(right) / 4, "problems": 4})
            run.evaluation(step, rows[-1])
            names = [f"p{problem}" for problem in range(4)]
            run.held_out(step, {"problem_ids": names, "greedy": right, "correct": [0] * 4, "samples": 0})
        facts = {"steps": 2, "train_seconds": 2.0, "completion_tokens": 300, "peak_rss_mib": 500.0}
        run.summary({"before": rows[0], "after": rows[-1], **facts, "model": "abacus", "machine": {"cores": 2}})
