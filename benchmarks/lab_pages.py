"""How long the lab's page waits: each of its questions about a big run, and what the index behind one costs a run.

python benchmarks/lab_pages.py                            (500 steps of 10,000 completions: 3 GB, two minutes)
python benchmarks/lab_pages.py --steps 60 --rows 1000
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from grouprl.config.run import RunConfig, dump_config
from grouprl.lab.server import create_app
from grouprl.record.rollouts import open_rollouts

GROUP, PROBLEMS, TOKENS, ROUNDS = 8, 7473, 16, 20
WORDS = "she has pens buys gives apples more left then so each total of the 12 + 7 = 19 boxed answer is"
METRICS = (
    *("reward", "reward_std", "accuracy", "frac_reward_zero_std", "frac_invalid", "groups/sampled", "groups/kept"),
    *("completions/mean_length", "completions/clipped_ratio", "loss", "kl", "entropy", "grad_norm", "learning_rate"),
    *("clip_low_fraction", "clip_high_fraction", "ratio_mean", "ratio_max", "sampler_learner_gap", "tokens_per_second"),
    *("completion_tokens", "time/rollout", "time/reward", "time/learn", "time/reference", "time/total", "rss_mib"),
)
# What the page asks for when a run is opened, and when its groups are.
RUN = ("", "/series")
GROUPS = ("/groups?limit=50", "/groups/{step}/0")


class Rows:
    """Steps of completions of some words, their blobs and texts from a small stock."""

    def __init__(self, rows: int) -> None:
        rng = random.Random(0)
        self.groups = rows // GROUP
        self.texts = [" ".join(rng.choices(WORDS.split(), k=rng.randint(8, 20))) for _ in range(997)]
        self.ids = [np.array(rng.choices(range(40, 900), k=TOKENS), "<i4").tobytes() for _ in range(31)]
        self.numbers = [np.array([-rng.random() for _ in range(TOKENS)], "<f4").tobytes() for _ in range(31)]

    def problem(self, step: int, group: int) -> str:
        return f"train-{(step * self.groups + group) * 31 % PROBLEMS}"

    def problems(self) -> Iterator[tuple[Any, ...]]:
        for number in range(PROBLEMS):
            yield f"train-{number}", f"Problem {number}: how many pens has she?", None, self.ids[0], '{"answer": "19"}'

    def completions(self, step: int) -> Iterator[tuple[Any, ...]]:
        for group in range(self.groups):
            problem = self.problem(step, group)
            for index in range(GROUP):
                some = step * 7 + group * 3 + index
                right = int(some % 5 == 0)
                ids, numbers = self.ids[some % 31], self.numbers[some % 31]
                said = (self.texts[some % 997], float(right), '{"correct": 1.0}', None, right, 0.5 - right)
                drawn = (TOKENS, "end", step - 1, ids, numbers, numbers)
                yield (
                    step,
                    group,
                    index,
                    problem,
                    *said,
                    *drawn,
                    None,
                    None,
                    numbers,
                    numbers,
                    numbers,
                    None,
                    float(right),
                    1,
                )


def make_run(folder: Path, steps: int, rows: Rows) -> dict[str, list[float]]:
    """Writes the run; gives the seconds of its last steps, with the index `visits` and without it."""
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(RunConfig(name=folder.name, steps=steps)), encoding="utf-8")
    lines = ({"step": step, **dict.fromkeys(METRICS, step / 7)} for step in range(1, steps + 1))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with closing(open_rollouts(str(folder / "rollouts.sqlite"))) as database:
        with database:
            database.executemany("INSERT INTO problems VALUES (?, ?, ?, ?, ?)", rows.problems())
        took = {"with": [write(database, rows, step) for step in range(1, steps + 1)][-ROUNDS:]}
        index = database.execute("SELECT sql FROM sqlite_master WHERE name = 'visits'").fetchone()[0]
        database.execute("DROP INDEX visits")
        took["without"] = [write(database, rows, step) for step in range(steps + 1, steps + 1 + ROUNDS)]
        with database:
            database.execute("DELETE FROM completions WHERE step > ?", (steps,))
        database.execute(index)
        database.execute("PRAGMA journal_mode=DELETE")
    return took


def write(database: Connection, rows: Rows, step: int) -> float:
    made = list(rows.completions(step))
    # Columns that were added to the table later come last, and are NULL here.
    names = [column[1] for column in database.execute("PRAGMA table_info(completions)")][: len(made[0])]
    insert = f"INSERT INTO completions ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    started = time.perf_counter()
    with database:
        database.executemany(insert, made)
    return time.perf_counter() - started


def questions(steps: int, rows: Rows) -> dict[str, str]:
    middle, last_page = steps // 2, max(0, rows.groups - 200)
    return {
        "list of runs": "",
        "one run": f"/big{RUN[0]}",
        "its series": f"/big{RUN[1]}",
        "groups of the last step, first page of 50": "/big/groups?limit=50",
        "groups of a step, first page of 200": f"/big/groups?step={middle}&limit=200",
        "groups of a step, last page of 200": f"/big/groups?step={middle}&offset={last_page}&limit=200",
        "one group": f"/big/groups/{middle}/{rows.groups // 2}",
        "one completion, token by token": f"/big/completions/{middle}/{rows.groups // 2}/3",
        "search that finds much": "/big/search?text=BOXED&limit=50",
        "search that finds nothing": "/big/search?text=no%20such%20words",
        "search that finds nothing, by reward": "/big/search?min_reward=2",
        "a problem through training": f"/big/history?problem={rows.problem(middle, 1)}&limit=100",
        "steps with a walk-through": "/api/explain/steps?run=big",
    }


def timed(ask: Callable[[], object]) -> list[float]:
    """Milliseconds of each round, after one to warm up."""
    took = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        ask()
        took.append((time.perf_counter() - started) * 1e3)
    return took[1:]


def report(client: TestClient, steps: int, rows: Rows) -> None:
    print(f"{'':<44} {'median':>8} {'worst':>8}   of {ROUNDS}, ms")
    for name, path in questions(steps, rows).items():
        asked = path if path.startswith("/api") else f"/api/runs{path}"
        show(name, timed(partial(answer, client, asked)))
    opened = [f"/api/runs/big{path.format(step=steps)}" for path in (*RUN, *GROUPS)]
    show("all that opening a run and its groups asks", timed(lambda: [answer(client, path) for path in opened]))
    calls, started, path = 0, time.perf_counter(), "/api/runs/big/search?text=no%20such%20words"
    cursor: str | None = ""
    while cursor is not None:
        cursor = answer(client, f"{path}&before={cursor}")["next"]
        calls += 1
    print(f"a search through everything that finds nothing: {time.perf_counter() - started:.1f} s in {calls} calls")


def answer(client: TestClient, path: str) -> Any:
    found = client.get(path)
    if found.status_code != 200:
        sys.exit(f"{path}: expected an answer, got {found.status_code} {found.text}")
    return found.json()


def show(name: str, took: list[float]) -> None:
    print(f"{name:<44} {statistics.median(took):>8.1f} {max(took):>8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rows", type=int, default=10_000, help="completions of a step")
    parser.add_argument("--smoke", action="store_true", help="a small run: whether it runs, not how fast")
    given = parser.parse_args()
    if given.smoke:
        given.steps, given.rows = 4, 64
    rows = Rows(given.rows)
    with tempfile.TemporaryDirectory(prefix="lab_pages_") as place:
        root = Path(place)
        took = make_run(root / "big", given.steps, rows)
        size = (root / "big" / "rollouts.sqlite").stat().st_size / 1e9
        print(f"{given.steps} steps of {rows.groups * GROUP} completions in groups of {GROUP}: {size:.2f} GB")
        with TestClient(create_app(root)) as client:
            report(client, given.steps, rows)
        for which, seconds in took.items():
            spread = f"{min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f}"
            print(f"to write a step {which} the index: {statistics.median(seconds) * 1e3:.1f} ms ({spread})")


if __name__ == "__main__":
    main()
