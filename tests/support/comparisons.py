"""Comparisons from a few numbers: run directories that the recorder itself wrote, and the file that names them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from grouprl.record.write import RunRecord
from grouprl.tools.compare.read import COMPARISON_FILE
from grouprl.types import StepRecord

PROBLEMS = [f"p{n}" for n in range(10)]


def record(
    directory: Path,
    solved: Sequence[Sequence[int]],
    *,
    tokens: Sequence[int] = (100, 300),
    seconds: Sequence[float] = (1.0, 2.0),
    counts: Sequence[int] | None = None,
    finished: bool = True,
    memory: float = 500.0,
) -> None:
    """A run of two steps, judged before, between and after: `solved` [3][problems] are 0 or 1, `counts` of 8."""
    with RunRecord.create(directory, "seed: 0\n") as run:
        for step in (1, 2):
            metrics = {"reward": step / 2, "completion_tokens": tokens[step - 1], "time/total": seconds[step - 1]}
            run.step(StepRecord(step, {**metrics, "time/rollout": seconds[step - 1] / 2, "kl": 0.1 * step}, (), (), ()))
        rows = []
        for step, greedy in enumerate(solved):
            row = {"greedy_accuracy": sum(greedy) / len(greedy), "problems": len(greedy)}
            if counts is not None:
                row |= {"pass_at_1": sum(counts) / 8 / len(counts)}
            run.evaluation(step, row)
            per_problem = {"greedy": greedy, "correct": counts or [0] * len(greedy), "samples": 8 if counts else 0}
            run.held_out(step, {"problem_ids": PROBLEMS[: len(greedy)], **per_problem})
            rows.append(row)
        ends = {"after": rows[-1]} if finished else {}
        facts = {"steps": 2, "train_seconds": sum(seconds), "completion_tokens": sum(tokens), "peak_rss_mib": memory}
        run.summary({"before": rows[0], **ends, **facts, "model": "abacus", "machine": {"cores": 2}})


def comparison(folder: Path, variants: Sequence[str], seeds: Sequence[int], baseline: str | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    given = {"seeds": list(seeds), "variants": {name: [f"x={name}"] for name in variants}, "baseline": baseline}
    (folder / COMPARISON_FILE).write_text(json.dumps(given))
    return folder


def ones(count: int, of: int = 4) -> list[int]:
    return [1] * count + [0] * (of - count)


def with_and_without_critic(folder: Path, seeds: Sequence[int] = (0,)) -> Path:
    """GRPO, and PPO that ends ahead of it: one problem of four more."""
    comparison(folder, ["grpo", "ppo"], seeds)
    for name, critic, last in (("grpo", "none", 2), ("ppo", "copy", 3)):
        for seed in seeds:
            run = folder / f"{name}-seed{seed}"
            record(run, [ones(1), ones(2), ones(last)], memory=500.0 + seed)
            (run / "config.yaml").write_text(f"algorithm: {{name: {name}, critic: {critic}}}\n")
    return folder
