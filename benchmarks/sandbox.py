"""What a sandbox costs: milliseconds per program and programs per second, beside what the machine cannot do without.

python benchmarks/sandbox.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from grouprl.checks.sandbox import BACKENDS, ReturnValue, run_in_sandbox, why_unavailable
from grouprl.checks.sandbox.visible_files import EXECUTABLE

ROUNDS, TOGETHER = 60, 200
PROGRAM = "def add(a, b):\n    return a + b"
CALLS = [f"add({n}, 1)" for n in range(3)]
RIGHT = tuple(ReturnValue(n + 1) for n in range(3))
BWRAP_TRUE = "bwrap --unshare-all --ro-bind / / --die-with-parent true"


def milliseconds(run: Callable[[], object], rounds: int) -> str:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e3)
    return f"{statistics.median(times):6.1f} ms (fastest {min(times):.1f}, slowest {max(times):.1f})"


def command(words: str) -> Callable[[], object]:
    return lambda: subprocess.run(words.split(), check=True)


def program(backend: str) -> None:
    assert run_in_sandbox(PROGRAM, CALLS, backend=backend).outcomes == RIGHT


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="once each: whether it runs, not how fast")
    rounds, together = (1, 2) if parser.parse_args().smoke else (ROUNDS, TOGETHER)
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {rounds} runs one after another: median")
    print(f"{'python -I -S -c pass':<24}{milliseconds(command(f'{EXECUTABLE} -I -S -c pass'), rounds)}")
    if shutil.which("bwrap"):
        print(f"{'bwrap true':<24}{milliseconds(command(BWRAP_TRUE), rounds)}")
    for backend in BACKENDS:
        if reason := why_unavailable(backend):
            print(f"{backend:<24}not here: {reason}")
            continue
        print(f"{backend:<24}{milliseconds(partial(program, backend), rounds)}")
        with ThreadPoolExecutor(cores) as pool:
            started = time.perf_counter()
            list(pool.map(program, [backend] * together))
            print(f"{'':<24}{together / (time.perf_counter() - started):6.1f} programs a second, {cores} at a time")


if __name__ == "__main__":
    main()
