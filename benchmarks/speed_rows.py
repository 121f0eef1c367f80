"""What the speed benchmarks share: rows of the table, timing in turns, processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

HERE = Path(__file__).parent
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str
    ratio: float | None  # how many times as good as the peer: above 1 is better than it
    floor: float | None = None  # the same number, were nothing spent but arithmetic or memory traffic
    of_floor: float | None = None  # share of the floor that is reached; 1 = nothing left to gain


@dataclass(frozen=True)
class Curve:
    """Seconds of sampling and of learning at each point."""

    title: str
    axis: str
    points: Sequence[float]
    seconds: dict[str, list[float]]
    expected: str  # linear | flat | falls


def faster(name: str, unit: str, ours: float, peer: float | None, peer_name: str, floor: float | None = None) -> Row:
    """A row of rates: more is better."""
    ratio, share = (ours / peer if peer else None), (ours / floor if floor else None)
    return Row(name, unit, ours, peer, peer_name, ratio, floor, share)


def smaller(name: str, unit: str, ours: float, peer: float | None, peer_name: str, floor: float | None = None) -> Row:
    """A row of seconds or memory: less is better."""
    ratio, share = (peer / ours if peer and ours else None), (floor / ours if floor and ours else None)
    return Row(name, unit, ours, peer, peer_name, ratio, floor, share)


def clock() -> float:
    """CPU seconds of this process where one thread works, which hold on a busy machine; else wall clock."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds, and what the function gave."""
    began = clock()
    result = function()
    return clock() - began, result


def in_turns(
    contestants: Mapping[str, Callable[[int], Result]], *, rounds: int, at_most: float = float("inf")
) -> dict[str, list[Result]]:
    """Calls each contestant with the number of the round, one after the other, so that noise meets all alike.

    After two rounds another one begins only if it ends within `at_most` seconds, by the duration of the last.
    """
    found: dict[str, list[Result]] = {name: [] for name in contestants}
    began = time.perf_counter()
    for number in range(rounds):
        since = time.perf_counter()
        for name, contestant in contestants.items():
            found[name].append(contestant(number))
        now = time.perf_counter()
        if number > 0 and now - began + (now - since) > at_most:
            break
    return found


def median_seconds(
    contestants: Mapping[str, Callable[[], object]], *, rounds: int, at_most: float = float("inf"), warm: bool = False
) -> dict[str, float]:
    """Median seconds of each, measured in turns after one call to warm up, unless they are warm."""
    for contestant in contestants.values() if not warm else ():
        contestant()
    timers = {name: (lambda _, run=run: timed(run)[0]) for name, run in contestants.items()}
    return {name: statistics.median(taken) for name, taken in in_turns(timers, rounds=rounds, at_most=at_most).items()}


def child(script: str, *words: str, silent: bool = False) -> dict[str, Any]:
    """The JSON that ends what a process of its own prints; what it says goes to the terminal, or is kept for errors."""
    pipe = subprocess.PIPE
    run = subprocess.run(_command(script, words), stdout=pipe, stderr=pipe if silent else None, text=True, check=False)
    if run.returncode:
        said = f"\n{run.stderr[-2000:]}" if silent else ""
        raise SystemExit(f"{script} {' '.join(words)} ended with exit code {run.returncode}{said}")
    result: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return result


class Worker:
    """A process that answers lines of JSON with lines of JSON and waits in between: another environment, in turns."""

    def __init__(self, script: str, *words: str, kernels: bool) -> None:
        pipe, env = subprocess.PIPE, dict(os.environ) if kernels else {**os.environ, "GROUPRL_KERNELS": "off"}
        self._process = subprocess.Popen(
            _command(script, words), stdin=pipe, stdout=pipe, text=True, bufsize=1, env=env
        )

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self._process.args!r} ended with exit code {self._process.wait()}")
        result: dict[str, Any] = json.loads(answer)
        return result

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it


def answer_lines(answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """The other end of a `Worker`."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def _command(script: str, words: Sequence[str]) -> list[str]:
    return [sys.executable, str(HERE / script), *words]


def section_parser(description: str | None) -> argparse.ArgumentParser:
    """Options that every section has."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="tiny shapes: whether it runs, not how fast")
    return parser


def say(line: str) -> None:
    """Progress, beside the result."""
    print(f"  {line}", file=sys.stderr, flush=True)


def finish(rows: Sequence[Row], **details: Any) -> None:
    """Ends a section: its rows and whatever else is worth keeping, as one line of JSON."""
    print(json.dumps({"rows": [asdict(row) for row in rows], **details}))
