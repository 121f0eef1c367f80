"""The memory of each rank, measured beside what `grouprl plan --gpus` expects: whole weights and sharded ones.

python benchmarks/cluster_memory.py

Each rank reads how much its resident memory rises while it samples and while it learns, in the later steps of a run,
and adds the bytes of its networks and moments. No completion ends before `max_tokens`, because the plan counts all of
them at their longest. Linux only. (torch's profiler would miss what gloo's threads free.)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from shapes import TINY, Shape, prompts, save, text

import grouprl.rollout.native
from grouprl import Trainer
from grouprl.config.run import RunConfig
from grouprl.learner import Learner
from grouprl.rollout import NativeEngine, SpreadEngine
from grouprl.run.machine import networks_mib
from grouprl.tools.planner import GRPO, StepShape, shape_of
from grouprl.tools.planner.layouts import GPUS, RankLayout, plan_layout

MIB = 1 << 20
BATCH = {"problems": 8, "group_size": 8, "prompt_tokens": 48, "max_tokens": 64}
SIZES = {
    "2M": Shape(hidden=192, layers=4, heads=4, kv_heads=4, intermediate=512, **BATCH),
    "14M": Shape(hidden=384, layers=8, heads=6, kv_heads=6, intermediate=1024, **BATCH),
    "25M": Shape(hidden=512, layers=8, heads=8, kv_heads=8, intermediate=1376, **BATCH),
}
RANKS = (1, 2, 4)
NEAR = 0.1


@dataclass(frozen=True)
class Peaks:
    """Bytes of the rank with the highest peak."""

    model: str
    ranks: int
    shard: bool
    held: int  # networks and moments
    sampling: int  # at the peaks, with what is held
    learning: int
    planned_held: int
    planned_sampling: int
    planned_learning: int

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Planned over measured: held, sampling, learning."""
        pairs = (
            (self.planned_held, self.held),
            (self.planned_sampling, self.sampling),
            (self.planned_learning, self.learning),
        )
        held, sampling, learning = (planned / measured for planned, measured in pairs)
        return held, sampling, learning


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="one tiny model on two ranks: whether it runs")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)  # this process is a rank; the folder of models
    given = parser.parse_args()
    if given.rank:
        measure(given.rank)
        return
    sizes, counts = ({"tiny": TINY}, (2,)) if given.smoke else (SIZES, RANKS)
    with tempfile.TemporaryDirectory(prefix="grouprl-memory-") as place:
        folder = Path(place)
        for name, shape in sizes.items():
            save(shape, folder / name)
        found = [peaks for ranks in counts for peaks in of_ranks(ranks, sizes, folder)]
    worst = show(found)
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n", encoding="utf-8")
    if abs(worst - 1) > NEAR and not given.smoke:
        sys.exit(f"the plan is further than {NEAR:.0%} from what was measured")


def of_ranks(ranks: int, sizes: dict[str, Shape], folder: Path) -> list[Peaks]:
    """Starts ranks that make a small run of each model, with whole weights and with shards."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__]
    shapes = {name: asdict(shape) for name, shape in sizes.items()}
    (folder / "shapes.json").write_text(json.dumps(shapes), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["MALLOC_MMAP_THRESHOLD_"] = "65536"  # a tensor that is freed leaves the process
    ended = subprocess.run([*command, "--rank", str(folder)], env=environment, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{ranks} ranks: ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
    found = []
    for name, shape in sizes.items():
        for shard in (False, True)[: 1 if ranks == 1 else 2]:
            files = (folder / f"{name}-{ranks}-{int(shard)}-{rank}.json" for rank in range(ranks))
            rows = [json.loads(file.read_text(encoding="utf-8")) for file in files]
            most = {part: max(row[part] for row in rows) for part in rows[0]}
            found.append(Peaks(name, ranks, shard, **most, **planned(folder / name, shape, ranks, shard)))
    return found


def planned(model: Path, shape: Shape, ranks: int, shard: bool) -> dict[str, int]:
    """What the planner expects of a rank."""
    step = StepShape(shape.problems, shape.group_size, shape.prompt_tokens, shape.max_tokens, device="cpu", threads=1)
    layout = RankLayout(ranks, ranks if shard else 1)
    plan = plan_layout(shape_of(str(model)), GRPO, step, layout, GPUS["H100"])
    return {
        "planned_held": plan.memory.held,
        "planned_sampling": plan.memory.sampling + plan.gathered_sampling,
        "planned_learning": plan.memory.learning + plan.gathered_learning,
    }


def measure(folder: Path) -> None:
    """Makes the runs of this rank, and writes its bytes."""
    shapes = json.loads((folder / "shapes.json").read_text(encoding="utf-8"))
    ranks, rank = int(os.environ["WORLD_SIZE"]), os.environ["RANK"]
    torch.set_num_threads(1)
    meter = Meter()
    for name, sizes in shapes.items():
        for shard in (False, True)[: 1 if ranks == 1 else 2]:
            run = f"{name}-{ranks}-{int(shard)}"
            meter.peaks, meter.held = {"sampling": 0, "learning": 0}, 0
            train(folder, name, run, Shape(**sizes), shard)
            held = meter.held
            found = {"held": held} | {phase: held + peak for phase, peak in meter.peaks.items()}
            (folder / f"{run}-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def train(folder: Path, model: str, run: str, shape: Shape, shard: bool) -> None:
    """Makes three steps."""
    rows = [{"prompt": text(prompt)} for prompt in prompts(replace(shape, problems=4 * shape.problems))]
    settings: dict[str, Any] = {
        "model": {"threads": 1, "device": "cpu", "dtype": "float32"},
        "rollout": {
            "problems_per_step": shape.problems,
            "group_size": shape.group_size,
            "max_tokens": shape.max_tokens,
        },
        "evaluation": {"problems": 1, "samples": 0},
        "distributed": {"shard": shard},
    }
    config = RunConfig(name=run, runs_dir=str(folder / "runs"), steps=3, **settings)
    Trainer(model=folder / model, task=rows, rewards=[first_letters], config=config).train()


def first_letters(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """Differs between completions."""
    return [sum(map(ord, completion[:9])) % 7 / 7 for completion in completions]


class Meter:
    """Counts bytes in the engine's and the learner's calls from now on; those of steps that have moments count."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self.held = 0
        engine = SpreadEngine if int(os.environ["WORLD_SIZE"]) > 1 else NativeEngine
        grouprl.rollout.native.end_token_ids = lambda model, tokenizer: (-1,)  # type: ignore[attr-defined]
        for owner, name, phase in (
            (engine, "generate", "sampling"), (Learner, "evaluate", "learning"), (Learner, "learn", "learning")
        ):  # fmt: skip
            setattr(owner, name, partial_method(self, getattr(owner, name), phase))

    def call(self, function: Callable[..., Any], phase: str, *arguments: Any, **named: Any) -> Any:
        """Calls a function, and keeps the most bytes that it had at once."""
        if phase == "sampling" and len(arguments[1]) == 1:  # an evaluation
            return function(*arguments, **named)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins again
        before = resident("VmRSS")
        result = function(*arguments, **named)
        self.peaks[phase] = max(self.peaks[phase], resident("VmHWM") - before)
        if function.__name__ == "learn":
            if not self.held:  # the first update makes the moments
                self.peaks = dict.fromkeys(self.peaks, 0)
            self.held = round(sum(networks_mib(arguments[0]).values()) * MIB)
        return result


def resident(name: str) -> int:
    """Bytes of a line of this process's status."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(name))
    return int(line.split()[1]) << 10


def partial_method(meter: Meter, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """A method that a meter calls."""
    return lambda *arguments, **named: partial(meter.call, function, phase)(*arguments, **named)


def show(found: Sequence[Peaks]) -> float:
    """Prints the figures; gives the ratio that is furthest from 1."""
    table = Table("model", "ranks", "weights", "held", "sampling", "learning", "planned / measured")
    for one in found:
        sizes = (f"{size / MIB:.1f}" for size in (one.held, one.sampling, one.learning))
        ratios = ", ".join(f"{ratio:.2f}" for ratio in one.ratios)
        table.add_row(one.model, str(one.ranks), "shards" if one.shard else "whole", *sizes, ratios)
    Console(width=110).print(table)
    worst = max((ratio for one in found for ratio in one.ratios), key=lambda ratio: abs(ratio - 1))
    print(f"MiB of the rank with most; torch {torch.__version__}. Furthest ratio: {worst:.3f}")
    return worst


if __name__ == "__main__":
    main()
