"""One run on several layouts: one process, ranks of torchrun, a Ray cluster with an actor killed on the way.

python benchmarks/cluster.py

With distributed.exact=true all of them end with the same weights, to the bit. On a machine with few cores none of them
is faster than one process: the table shows what each costs.

python benchmarks/cluster.py --staleness

Trains the ladder with samplers that are 0, 1, 2 and 4 steps ahead of the learner, three seeds each: mean reward against
completion tokens, and against seconds of training.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from grouprl.evaluation.statistics import mean_interval

RAY = ("cluster.backend=ray", "cluster.samplers=2", "cluster.scorers=2")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # arguments of python before `-m grouprl`, settings
    "one process": ((), ()),
    "2 ranks": ((*TORCHRUN, "2"), ()),
    "4 ranks": ((*TORCHRUN, "4"), ()),
    "Ray, 2 samplers, 2 scorers, one killed": ((), RAY),
}
AHEAD = (0, 1, 2, 4)  # steps
# prime-rl's loss, with one update a step: the mask and the drift are all that corrects for older samplers.
LATE = ("algorithm=prime_rl", "algorithm.minibatches=1", "cluster.backend=ray", "cluster.samplers=2")
WINDOW, SHARES = 10, (0.25, 0.5, 0.75, 1.0)
SMOKE = ("steps=3", "evaluation.problems=4", "rollout.problems_per_step=4", "rollout.group_size=4")


@dataclass(frozen=True)
class Ended:
    """How a layout ended."""

    layout: str
    weights: str  # SHA-256 of the policy
    reward: float  # of the last step
    step_seconds: float  # mean over the steps after the first
    wall_seconds: float  # of the whole command, with start and evaluations
    cpu_seconds: float  # of all its processes that ended by themselves
    lost: int  # actors that were replaced


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a few small steps: whether it runs")
    parser.add_argument("--steps", type=int, help="of each run; without it 10, and with --staleness the recipe's")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--staleness", action="store_true", help="samplers that are ahead of the learner")
    parser.add_argument("--seeds", type=int, default=3, help="with --staleness")
    parser.add_argument("--runs", type=Path, help="with --staleness: the folder of the runs; a later call resumes them")
    given = parser.parse_args()
    if given.staleness or given.smoke:
        small = ("steps=4", "evaluation.problems=4", "rollout.problems_per_step=4") if given.smoke else ()
        small = (*small, f"steps={given.steps}") if given.steps else small
        plans = [(2, 0)] if given.smoke else [(ahead, seed) for seed in range(given.seeds) for ahead in AHEAD]
        with tempfile.TemporaryDirectory(prefix="grouprl-staleness-") as folder:
            curves = [curve(given.runs or Path(folder), ahead, seed, small) for ahead, seed in plans]
        show_curves(curves)
    if given.staleness:
        if given.json:
            given.json.write_text(json.dumps([asdict(one) for one in curves]) + "\n", encoding="utf-8")
        return
    size = SMOKE if given.smoke else (f"steps={given.steps or 10}", "evaluation.problems=100")
    settings = (*size, "evaluation.samples=0", "checkpoint.every=0", "distributed.exact=true", "model.threads=1")
    with tempfile.TemporaryDirectory(prefix="grouprl-cluster-") as folder:
        ended = [run(name, Path(folder), settings) for name in LAYOUTS if not given.smoke or name != "4 ranks"]
    show(ended)
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in ended], indent=2) + "\n", encoding="utf-8")
    if len({one.weights for one in ended}) > 1:
        sys.exit("the layouts ended with different weights")


def run(name: str, folder: Path, settings: Sequence[str]) -> Ended:
    """Makes the run of a layout; with Ray, kills an actor after the second step."""
    prefix, own = LAYOUTS[name]
    place = name.partition(",")[0].replace(" ", "-")
    arguments = ["-m", "grouprl", "train", "demo", *settings, *own, f"name={place}", f"runs_dir={folder}"]
    began, before = time.perf_counter(), cpu_seconds()
    process = subprocess.Popen(
        [sys.executable, *prefix, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    metrics = folder / place / "metrics.jsonl"
    if own:
        kill_an_actor(process, metrics)
    text, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{name}: ended with {process.returncode}\n{text}")
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    seconds = [row["time/total"] for row in rows[1:]]
    (model,) = (folder / place / "checkpoints").glob("*/model.safetensors")
    return Ended(
        layout=name,
        weights=hashlib.sha256(model.read_bytes()).hexdigest(),
        reward=rows[-1]["reward"],
        step_seconds=sum(seconds) / len(seconds),
        wall_seconds=time.perf_counter() - began,
        cpu_seconds=cpu_seconds() - before,
        lost=text.count("it is replaced"),
    )


@dataclass(frozen=True)
class Curve:
    """A run whose samplers were some steps ahead, by step."""

    ahead: int
    seed: int
    rewards: Sequence[float]
    tokens: Sequence[float]  # of completions, from the start of the run
    seconds: Sequence[float]  # of the steps, from the start of the run
    before: float  # greedy accuracy on held-out problems
    after: float


def curve(folder: Path, ahead: int, seed: int, small: Sequence[str]) -> Curve:
    name = f"ahead-{ahead}-seed-{seed}"
    own = (f"cluster.max_staleness={ahead}", f"seed={seed}", f"name={name}", f"runs_dir={folder}")
    command = [sys.executable, "-m", "grouprl", "train", "ladder", *LATE, *own, "evaluation.samples=0", *small]
    if not (folder / name / "summary.json").exists():
        again = ["--resume"] * (folder / name).exists()
        ended = subprocess.run([*command, *again], capture_output=True, text=True, check=False)
        if ended.returncode:
            sys.exit(f"{name}: ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    if max(row.get("staleness", 0) for row in rows) > ahead or (ahead > 0) != any(row.get("staleness") for row in rows):
        sys.exit(f"{name}: the samplers were not {ahead} steps ahead")
    summary = json.loads((folder / name / "summary.json").read_text(encoding="utf-8"))
    return Curve(
        ahead,
        seed,
        [row["reward"] for row in rows],
        [*accumulate(row["completion_tokens"] for row in rows)],
        [*accumulate(row["time/total"] for row in rows)],
        summary["before"]["greedy_accuracy"],
        summary["after"]["greedy_accuracy"],
    )


def show_curves(curves: Sequence[Curve]) -> None:
    """Mean rewards of the last steps before shares of what the shortest run took, of tokens and of seconds.

    The last column is the difference at the end from the same seed with samplers that are not ahead.
    """
    table = Table("ahead", "by", *(f"{share:.0%}" for share in SHARES), "minus 0 ahead", "total", "greedy, by seed")
    for ahead in sorted({one.ahead for one in curves}):
        runs = [one for one in curves if one.ahead == ahead]
        for axis in ("tokens", "seconds"):
            spent = [share * min(getattr(one, axis)[-1] for one in curves) for share in SHARES]
            means = [fmean(reward_at(one, axis, most) for one in runs) for most in spent]
            usual = {one.seed: reward_at(one, axis, spent[-1]) for one in curves if one.ahead == 0}
            apart = [reward_at(one, axis, spent[-1]) - usual[one.seed] for one in runs if one.seed in usual]
            low, high = mean_interval(apart) if len(apart) > 1 else (math.nan, math.nan)
            table.add_row(
                str(ahead),
                axis,
                *(f"{mean:.3f}" for mean in means),
                f"{fmean(apart):+.3f} ({low:+.3f} to {high:+.3f})" if ahead and apart else "-",
                f"{fmean(getattr(one, axis)[-1] for one in runs):,.0f}",
                ", ".join(f"{one.after:.1%}" for one in runs),
            )
    Console(width=140).print(table)


def reward_at(run: Curve, axis: str, most: float) -> float:
    """Mean reward of the last steps before a run had spent so many tokens or seconds."""
    end = max(1, sum(spent <= most for spent in getattr(run, axis)))
    return fmean(run.rewards[max(0, end - WINDOW) : end])


def kill_an_actor(process: subprocess.Popen[str], metrics: Path) -> None:
    """Waits for the second step, then ends an actor of this run as the kernel would when memory is short."""
    while process.poll() is None:
        if metrics.exists() and len(metrics.read_text(encoding="utf-8").splitlines()) >= 2:
            listed = subprocess.run(
                ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
            ).stdout
            rows = [line.split(maxsplit=2) for line in listed.splitlines()]
            parents = {int(pid): int(parent) for pid, parent, *_ in rows}
            for pid, parent, *command in rows:  # the run starts the raylet, which starts the actors
                if "ray::_Actor" in str(command) and parents.get(int(parent)) == process.pid:
                    os.kill(int(pid), signal.SIGKILL)
                    return
        time.sleep(0.01)


def cpu_seconds() -> float:
    """Of all processes that this one waited for, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(ended: Sequence[Ended]) -> None:
    table = Table("layout", "weights", "reward", "s a step", "s in all", "CPU s", "replaced")
    for one in ended:
        figures = (f"{one.reward:.3f}", f"{one.step_seconds:.2f}", f"{one.wall_seconds:.0f}", f"{one.cpu_seconds:.0f}")
        table.add_row(one.layout, one.weights[:16], *figures, str(one.lost))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
