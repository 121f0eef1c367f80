"""GRPO with and without a teacher that has read the solution, from equal starts, problems and numbers of completions.

    python benchmarks/distillation.py            # 15 minutes of one core; --smoke for one step without the cold start

The start is abacus after 150 updates on pairs of which half have the solution in the prompt and repeat it: without them
it cannot read one. It prints the accuracy of each step's samples and the teacher's share of the tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from grouprl.algorithms.distillation import Distill
from grouprl.problems.word_problems import WordProblems, cold_start_pairs, worked_solution

ONE_THREAD = "model.threads=1"


def write_pairs(path: Path, count: int) -> None:
    """Pairs of abacus; in half of them the prompt has the solution, and the completion repeats it."""
    part, rng = Distill(), random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for problem, text in cold_start_pairs(WordProblems(), count, 0.3, 1):
            question = problem.prompt_text
            if rng.random() < 0.5:
                question = part.prompt(question, text := worked_solution(problem))
            prompt = [{"role": "user", "content": question}]
            file.write(json.dumps({"prompt": prompt, "completion": text}) + "\n")


def grouprl(folder: Path, *words: str) -> None:
    """Runs the program in a folder, in silence."""
    subprocess.run([sys.executable, "-m", "grouprl", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def trained(folder: Path, model: str, coef: float, seed: int, steps: int) -> list[dict[str, Any]]:
    """The metrics of a run of 16 groups of 2 a step, rewarded for the right answer alone."""
    sizes = ("rollout.problems_per_step=16", "rollout.group_size=2", f"steps={steps}", "learner.warmup_steps=2")
    changes = (f"algorithm.distill_coef={coef}",) if coef else ()
    run = (f"name=run-{coef}-{seed}", f"seed={seed}", f"model.path={model}", ONE_THREAD, "evaluation.problems=0")
    grouprl(folder, "train", "demo", "rewards=[{name: correct_answer}]", *sizes, *changes, *run)
    lines = (folder / "runs" / f"run-{coef}-{seed}" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    """Makes the start, then a run of each coefficient and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one step from abacus itself")
    smoke = parser.parse_args().smoke
    with tempfile.TemporaryDirectory() as made:
        folder, model = Path(made), "abacus" if smoke else "reader"
        if not smoke:
            write_pairs(folder / "pairs.jsonl", 2400)
            start = ("model.path=abacus", "pairs.path=pairs.jsonl", "batch_pairs=16", "learner.warmup_steps=10")
            grouprl(folder, "sft", "abacus_sft", *start, ONE_THREAD, "name=cold-start", f"out={folder / model}")
        for seed in (0,) if smoke else (0, 1, 2):
            for coef in (0.0, 1.0) if smoke else (0.0, 0.1, 1.0):
                rows = trained(folder, model, coef, seed, 1 if smoke else 8)
                shares = [f"{100 * row['accuracy']:.0f}" for row in rows]
                taught, bare = (
                    fmean(row.get(name, 0) for row in rows) for name in ("distill_share", "correct_without_work_share")
                )
                print(f"coef {coef} seed {seed}: accuracy {' '.join(shares)} %, taught {taught:.0%}, bare {bare:.1%}")


if __name__ == "__main__":
    main()
