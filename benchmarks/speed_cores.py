"""Wall-clock seconds of a GRPO step on 1, 2, 4 and 8 threads, as many as there are cores, and on a busy machine.

    python benchmarks/speed_cores.py [--smoke] [--only demo small wide busy]

`demo` is the recipe `grouprl train demo`; `small` and `wide` are steps with random weights (`vs_trl.py`). Every
measurement is a process of its own; numbers of threads are measured in turns. "default" is the configuration as it
comes, model.threads=0, of the demo. `busy` is the demo beside one other process that keeps all cores busy.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from speed_rows import Row, child, finish, in_turns, say, section_parser, smaller

CORES = os.cpu_count() or 1
THREADS = [count for count in (1, 2, 4, 8) if count == 1 or count <= CORES]
ROUNDS = 2
SMOKE = ("rollout.problems_per_step=2", "rollout.group_size=2")
PARTS = {"sampling": "time/rollout", "reference": "time/reference", "learning": "time/learn", "step": "time/total"}
# One process whose threads hash without Python's lock.
BUSY = """
import hashlib, os, threading
block, parent = bytes(1 << 26), os.getppid()
def work():
    while os.getppid() == parent:  # it ends with the benchmark, however that ends
        hashlib.sha256(block)
for _ in range(os.cpu_count()):
    threading.Thread(target=work).start()
"""
Seconds = dict[str, float]


def demo(steps: int, sizes: Sequence[str], threads: int) -> Seconds:
    """Seconds of a step of the recipe and of its parts; medians without the first step."""
    # Not what the section itself is limited to: the thread count is the configuration's.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    few = ("evaluation.problems=1", "evaluation.samples=1", f"steps={steps}", f"model.threads={threads}", *sizes)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grouprl", "train", "demo", f"runs_dir={folder}", "--name", "demo", *few]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if run.returncode:
            raise SystemExit(f"{' '.join(command)} ended with exit code {run.returncode}\n{run.stderr[-2000:]}")
        lines = (Path(folder) / "demo" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    trained = [found for found in map(json.loads, lines) if PARTS["step"] in found][1:]
    return {part: statistics.median(found[metric] for found in trained) for part, metric in PARTS.items()}


def random_weights(shape: str, words: Sequence[str], threads: int) -> Seconds:
    """The same of a step with random weights."""
    found = child("vs_trl.py", "--only", "grouprl", "--shape", shape, "--threads", str(threads), *words, silent=True)
    names = {"sampling": "generation", "reference": "reference", "learning": "learn"}
    return {part: found["parts"][name][0] for part, name in names.items()} | {"step": found["wall"]}


@contextmanager
def busy_cores() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def medians(contestants: Mapping[str, Callable[[], Seconds]], rounds: int) -> dict[str, Seconds]:
    def measured(run: Callable[[], Seconds]) -> Callable[[int], Seconds]:
        return lambda _: run()

    found = in_turns({name: measured(run) for name, run in contestants.items()}, rounds=rounds)
    return {
        name: {part: statistics.median(one[part] for one in several) for part in PARTS}
        for name, several in found.items()
    }


def by_threads(name: str, step: Callable[[int], Seconds], rounds: int) -> tuple[list[Row], dict[str, Seconds]]:
    """A row for each number of threads and part, beside the same on one thread."""
    contestants = {f"{count}": partial(step, count) for count in THREADS}
    if name == "demo":
        contestants["default"] = partial(step, 0)
    found = medians(contestants, rounds)
    rows = []
    for count, seconds in found.items():
        label = "default threads" if count == "default" else f"{count} thread{'s' * (count != '1')}"
        parts = PARTS if count.isdigit() else ("step",)
        for part in parts:
            title = f"{name}, {label}, {part}"
            rows.append(
                smaller(title, "s", seconds[part], None, "")
                if count == "1"
                else smaller(title, "s", seconds[part], found["1"][part], "1 thread")
            )
    say("; ".join(f"{count}: {seconds['step']:.2f} s" for count, seconds in found.items()))
    return rows, found


def busy(step: Callable[[int], Seconds], rounds: int) -> tuple[list[Row], dict[str, Seconds]]:
    """The demo with and without another process on all cores."""

    def disturbed() -> Seconds:
        with busy_cores():
            return step(0)

    found = medians({"quiet": partial(step, 0), "busy": disturbed}, rounds)
    seconds, quiet = found["busy"]["step"], found["quiet"]["step"]
    say(f"quiet {quiet:.2f} s, busy {seconds:.2f} s")
    return [smaller("demo, all cores busy, step", "s", seconds, quiet, "quiet machine")], found


def main() -> None:
    parser = section_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=("demo", "small", "wide", "busy"))
    given = parser.parse_args()
    steps, rounds = (2, 1) if given.smoke else (6, ROUNDS)
    run = partial(demo, steps, SMOKE if given.smoke else ())
    words = ("--smoke", "--steps", "1") if given.smoke else ("--steps", "1")
    sections = {
        "demo": lambda: by_threads("demo", run, rounds),
        "small": lambda: by_threads("small", partial(random_weights, "small", words), rounds),
        "wide": lambda: by_threads("wide", partial(random_weights, "wide", words), rounds),
        "busy": lambda: busy(run, rounds),
    }
    rows: list[Row] = []
    found: dict[str, Any] = {}
    for name in given.only or (("small", "busy") if given.smoke else sections):
        more, found[name] = sections[name]()
        rows += more
    finish(rows, seconds=found)


if __name__ == "__main__":
    main()
