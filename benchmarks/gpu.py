"""Whether GroupRL is right on a GPU, and how near it comes to what the GPU can do: one call of at most ten minutes.

    python benchmarks/gpu.py --json gpu.json          the whole course, on an NVIDIA GPU
    python benchmarks/gpu.py --sizes 0.5B             one size
    python benchmarks/gpu.py --smoke --device cpu     the same course with toy sizes, to see that it runs

Its parts, the most wanted first: the limits of the device; correctness against computations that share no code with
GroupRL (the tree mask, packed = padded, sampler = learner, CUDA graphs = eager); then for shapes of Qwen2.5 with random
weights, sampling against the time to read weights and cache (wanted: 60 % of it), learning against the rate of bfloat16
products (wanted: 45 %), and peak memory against the planner (wanted: within 10 %); a step of 256 completions of 512 +
1,024 tokens at G = 8 and 64, and the same step by TRL, or by transformers alone where TRL is not installed. Nothing is
downloaded.

A part that fails is reported, and the others run: also after a fault of the GPU, in a process of their own. Parts that
would begin after --seconds are skipped, and the one that runs then is broken off. --json is written after every part.
The exit status is 1 if a part failed. It has only been run as `--smoke` so far.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_correctness import check
from gpu_peers import peer_step
from gpu_speed import WANTED, limits, measure
from gpu_work import SIZES, TINY, Bench, DeviceFault, TimeIsUp, Work

from grouprl.run.machine import machine_facts
from grouprl.tools.planner import ModelShape

COLUMNS = (
    *("seconds", "tokens_s", "floor_share", "rate_share", "step_ms", "floor_step_ms", "draw_ms"),
    *("peak_gib", "planned_over_measured"),
)


def stages(arguments: argparse.Namespace) -> list[Callable[[Bench], None]]:
    """Groups of parts that share nothing, the most wanted first."""
    works, sizes = [Work(), Work(group_size=64)], {name: SIZES[name] for name in arguments.sizes}
    if arguments.smoke:
        works, sizes = [Work(8, group_size, 16, 24) for group_size in (2, 4)], {"tiny": TINY}
    first, *others = sizes.items()
    return [
        begin,
        check,
        partial(both, *first, works),
        *(partial(both, *other, works[:1]) for other in others),
        # Padded rows of a larger model do not fit.
        *(partial(peer, *first, work) for work in works if first[1].parameters < 2e9),
    ]


def begin(bench: Bench) -> None:
    bench.found["machine"] = machine_facts(bench.device)
    bench.found["wanted"] = WANTED
    bench.part("device", limits)


def both(name: str, shape: ModelShape, works: list[Work], bench: Bench) -> None:
    bench.found[f"{name} work"] = {f"G={work.group_size}": asdict(work) for work in works}
    if "bytes_s" in bench.found["device"]:
        measure(bench, name, shape, works)


def peer(name: str, shape: ModelShape, work: Work, bench: Bench) -> None:
    label = f"{name} G={work.group_size}"
    found = bench.part(f"{label} peer's step", peer_step, shape, work)
    own = bench.found.get(f"{label} step", {})
    if found is not None and "seconds" in own:
        bench.found[f"{label} peer's step"]["times_as_long_as_ours"] = found["seconds"] / own["seconds"]
        bench.save()


def table(found: dict[str, Any]) -> str:
    """One line a part."""
    lines = [f"{'':<34}" + "".join(f"{column[:13]:>14}" for column in COLUMNS)]
    for name, part in found.items():
        if "failed" in part or "skipped" in part:
            lines.append(f"{name:<34}  {part}")
        elif name.startswith("check "):
            lines.append(f"{name:<34}  ok  " + ", ".join(f"{key} {value:.3g}" for key, value in part.items()))
        elif "seconds" in part:
            cells = (f"{part[column]:>14,.3g}" if column in part else " " * 14 for column in COLUMNS)
            lines.append(f"{name:<34}" + "".join(cells))
    lines.append("wanted: " + ", ".join(f"{name} {value}" for name, value in WANTED.items()))
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true", help="toy sizes: whether it runs, not how fast")
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--json", type=Path, help="where to write the results, after every part")
    parser.add_argument("--seconds", type=float, default=540, help="when the course ends")
    parser.add_argument("--micro-batch-tokens", type=int, default=0, help="of the learner; 0 = its own choice")
    parser.add_argument("--trl-micro-batch", type=int, default=8)
    parser.add_argument("--trl-checkpointing", action="store_true")
    parser.add_argument("--stage", type=int, default=0, help="first stage; the results before it are in --json")
    parser.add_argument("--began", type=float, default=time.time(), help="seconds since 1970, of the first process")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    if arguments.smoke and not torch.cuda.is_available():
        arguments.device = "cpu"
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("expected a GPU that torch can use, found none: run this with --smoke --device cpu, or on one")
    bench = Bench(arguments, device, began=arguments.began)
    if arguments.stage:
        bench.found = json.loads(arguments.json.read_text())
    course = stages(arguments)
    bench.alarm()
    for number in range(arguments.stage, len(course)):
        try:
            course[number](bench)
        except TimeIsUp:
            bench.over = True
        except DeviceFault as fault:
            print(f"the GPU failed in {fault}: the next parts run in another process", flush=True)
            go_on(bench, number + 1)
    bench.over = True  # no alarm any more
    print(table(bench.found))
    sys.exit(any("failed" in part for part in bench.found.values()))


def go_on(bench: Bench, stage: int) -> None:
    """Replaces this process by one that begins with another stage."""
    if bench.arguments.json is None:
        bench.arguments.json = Path(tempfile.mkdtemp()) / "gpu.json"
    bench.save()
    signal.setitimer(signal.ITIMER_REAL, 0)  # it would outlive this process, and end one that does not listen yet
    own = [*sys.argv, "--stage", str(stage), "--began", str(bench.began), "--json", str(bench.arguments.json)]
    os.execv(sys.executable, [sys.executable, *own])


if __name__ == "__main__":
    main()
