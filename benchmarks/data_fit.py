"""Does `grouprl check-data` foretell a training? Shares of groups with a signal, foretold and then measured in a run.

    python benchmarks/data_fit.py                                           # the bundled models, minutes
    python benchmarks/data_fit.py --simulate                                # 20 data sets of known pass rates, a minute
    python benchmarks/data_fit.py --model build/smollm2 --task sums --sizes 8 --steps 24 -- rollout.max_tokens=24

The run has another seed and a learning rate of 0, so that the model stays the one that was checked: what is compared is
the estimate, not what is learned. 16 completions of 200 problems foretell groups of 8, which the run samples from other
problems of the same split, and groups of 32, which are more than were sampled.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from grouprl.cli.words import run_config
from grouprl.evaluation.statistics import wilson_interval
from grouprl.record.read import read_run
from grouprl.run.machine import with_dtype
from grouprl.run.opened import OpenedRun
from grouprl.run.train import run_to_end
from grouprl.tools.check_data import try_data
from grouprl.tools.check_data.estimate import pass_rate_weights, signal_chance, signal_interval
from grouprl.trainer.terminal import Terminal

BUNDLED = (
    ("abacus", "word_problems", ()),
    ("abacus", "sums", ()),
    ("abacus_chains", "chains", ("rewards=[{name: correct_answer}]",)),
)


def foretold_and_measured(
    model: str, task: str, settings: list[str], *, problems: int, steps: int, sizes: list[int]
) -> list[str]:
    """Rows of a table, one for each group size, over `steps` steps of 16 problems."""
    words = [*settings, "evaluation.problems=0", "rollout.problems_per_step=16"]
    chosen = {"model.path": model, "task.name": task}
    terminal = Terminal(errors=True)
    checked = try_data(OpenedRun(with_dtype(run_config([*words, "seed=0"], chosen))), terminal, problems=problems)
    rows = []
    for size in sizes:
        (cost,) = (cost for cost in checked.groups if cost.group_size == size)
        with tempfile.TemporaryDirectory() as folder:
            run = [f"rollout.group_size={size}", f"steps={steps}", "seed=1", "learner.learning_rate=0"]
            opened = OpenedRun(run_config([*words, *run, f"runs_dir={folder}", "name=run"], chosen))
            run_to_end(opened.config, opened.task, opened.rewards, display=terminal.silent())
            equal = [row["frac_reward_zero_std"] for row in read_run(Path(folder) / "run").metrics]
        share, groups = 1 - fmean(equal), 16 * len(equal)
        low, high = wilson_interval(round(share * groups), groups)
        foretold = f"{cost.signal:.1%} ({cost.interval[0]:.1%} to {cost.interval[1]:.1%})"
        off = 100 * (cost.signal - share)
        measured = f"{share:.1%} ({low:.1%} to {high:.1%}, {groups} groups)"
        rows.append(f"| {Path(model).name} | {task} | {size} | {foretold} | {measured} | {off:+.1f} |")
    return rows


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator], Any]] = {
    "even": lambda rng: rng.random(200),
    "U": lambda rng: rng.beta(0.3, 0.5, 200),
    "equal": lambda _: np.full(200, 0.1),
    "hard": lambda rng: rng.beta(0.1, 6, 200),
    "hard, some easier": lambda rng: np.where(rng.random(200) < 0.1, rng.beta(1, 6, 200), rng.beta(0.05, 10, 200)),
}


def simulated(name: str, runs: int) -> list[str]:
    """Rows of a table: 16 completions of 200 problems whose pass rates are known."""
    rng, rows = np.random.default_rng(0), []
    drawn = [DISTRIBUTIONS[name](rng) for _ in range(runs)]
    counts = [rng.binomial(16, rates) for rates in drawn]
    for size in (32, 64):
        errors, naive_errors, held = [], [], 0
        for rates, count in zip(drawn, counts, strict=True):
            truth, naive = (float(np.mean(1 - share**size - (1 - share) ** size)) for share in (rates, count / 16))
            others = np.minimum(count, 16 - count).tolist()
            weights = pass_rate_weights(others, [16] * 200, folded=True)
            errors.append(float(signal_chance(weights, size).mean()) - truth)
            naive_errors.append(naive - truth)
            low, high = signal_interval(others, [16] * 200, size)
            held += low <= truth <= high
        rows.append(
            f"| {name} | {size} | {100 * fmean(errors):+.1f} | {100 * fmean(naive_errors):+.1f} | {held} of {runs} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder; default: the bundled models")
    parser.add_argument("--task", help="with --model")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 32], help="of groups: 4, 8, 16, 32 or 64")
    parser.add_argument("--smoke", action="store_true", help="a few problems and one step")
    parser.add_argument("settings", nargs="*", help="after --, of the run")
    options = parser.parse_args()
    problems, steps = (8, 1) if options.smoke else (options.problems, options.steps)
    if options.simulate or options.smoke:
        print("| pass rates | G | mean error, points | naive | interval holds |\n|---|---|---|---|---|")
        for name in DISTRIBUTIONS:
            print(*simulated(name, 1 if options.smoke else 20), sep="\n", flush=True)
        if options.simulate:
            return
    plans = BUNDLED if options.model is None else ((options.model, options.task, options.settings),)
    print("| model | task | G | foretold, 95 % | measured, 95 % | off, points |\n|---|---|---|---|---|---|")
    rows = []
    for model, task, settings in plans:
        rows += foretold_and_measured(model, task, [*settings], problems=problems, steps=steps, sizes=options.sizes)
        print("\n".join(rows[-len(options.sizes) :]), flush=True)


if __name__ == "__main__":
    main()
