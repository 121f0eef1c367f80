"""The demo's figures wherever they stand: README.md, docs/start.md, docs/models.md, the recipe's comment, the pictures.

    python benchmarks/demo_figures.py --runs FOLDER --write

trains seeds 0, 1 and 2 in FOLDER unless they have finished there (five minutes on two cores), keeps the results in
benchmarks/results/demo.json, and draws the pictures with Chromium. `--write` puts the figures in their places; alone,
it takes the kept ones. A test compares the places with demo.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speed_targets import instruction_set

from grouprl.record.layout import RunDirectory

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "demo.json"
SEEDS = (0, 1, 2)
COMPARISON = "three"  # its folder, for a picture of its page
SHOWN_STEPS = (1, 5, 10, 20, 60)
EVALUATED = ("greedy_accuracy", "pass_at_1", "pass_at_8", "worked_share")
PARTS = {"learning": "learn", "sampling": "rollout", "reference log-probs": "reference", "rewards": "reward"}


def train(place: Path, seed: int, *changes: str) -> None:
    """Runs the demo in `place` and keeps its output and seconds beside it, unless it has finished there."""
    kept = place / f"demo-{seed}.json"
    if kept.exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    # The run chooses its number of threads, and the code is that of this folder.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    environment.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-m", "grouprl", "train", "demo", f"seed={seed}", *changes, "--name", f"demo-{seed}"]
    print(*command[2:], flush=True)
    started = time.perf_counter()
    printed = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.PIPE, check=True).stdout
    found = {"whole_seconds": time.perf_counter() - started, "instruction_set": instruction_set()}
    kept.write_text(json.dumps({**found, "printed": printed.decode().splitlines()}))


def measured(run: RunDirectory, summary: Mapping[str, Any], whole_seconds: float) -> dict[str, Any]:
    """The results of one run."""
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    seconds = [row["time/total"] for row in rows]
    return {
        **{when: {name: summary[when][name] for name in EVALUATED} for when in ("before", "after")},
        "whole_seconds": whole_seconds,
        **{name: summary[name] for name in ("train_seconds", "peak_rss_mib")},
        "step_seconds": {"median": statistics.median(seconds), "mean": statistics.mean(seconds)},
        "shares": {name: sum(row[f"time/{part}"] for row in rows) / sum(seconds) for name, part in PARTS.items()},
    }


def shown(printed: Sequence[str]) -> list[str]:
    """The output in the README: from the head of the table some steps, and all that follows them."""
    head = next(index for index, line in enumerate(printed) if line.split()[:2] == ["step", "reward"])
    steps = [re.match(r" *(\d+)/\d+ ", line) for line in printed[head:]]
    return [
        line.rstrip()
        for line, step in zip(printed[head:], steps, strict=True)
        if step is None or int(step[1]) in SHOWN_STEPS
    ]


def facts(place: Path, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """The contents of demo.json for the runs in `place`."""
    machines, found = [], {}
    for seed in seeds:
        run = RunDirectory(place / "runs" / f"demo-{seed}")
        summary, kept = json.loads(run.summary.read_text()), json.loads((place / f"demo-{seed}.json").read_text())
        machines.append({**summary["machine"], "instruction_set": kept["instruction_set"]})
        found[str(seed)] = measured(run, summary, kept["whole_seconds"])
        if seed == seeds[0]:
            printed = shown(kept["printed"])
    assert all(machine == machines[0] for machine in machines), f"expected runs of one machine, got {machines}"
    return {"machine": machines[0], "seeds": found, "printed": printed}


def machine_words(found: Mapping[str, Any]) -> str:
    machine, torch = found["machine"], f"torch {found['machine']['torch'].partition('+')[0]}"
    return f"{machine['threads']} cores of an {machine['cpu']} ({machine['instruction_set'].upper()}, {torch})"


def table(found: Mapping[str, Any]) -> str:
    """The rows of docs/start.md, one for each seed."""
    rows = ""
    for seed, one in found["seeds"].items():
        cells = [f"{one[when][name]:.1%}" for name in EVALUATED for when in ("before", "after")]
        rows += f"| {' | '.join([seed, *cells])} | {one['train_seconds']:.0f} s | {one['whole_seconds']:.0f} s |\n"
    return rows


def readme(page: str, found: Mapping[str, Any]) -> str:
    first = found["seeds"]["0"]
    takes = f"On {machine_words(found)}, `make demo` takes {first['whole_seconds']:.0f} s after the install:\n\n```\n"
    return put(page, r"On [^\n]*after the install:\n\n```\n.*?```\n", takes + "\n".join(found["printed"]) + "\n```\n")


def demo(page: str, found: Mapping[str, Any]) -> str:
    first = found["seeds"]["0"]
    page = put(page, r"(?<=whole run \|\n)\|[-|]*\|\n(?:\| \d [^\n]*\n)+", "|---" * 11 + "|\n" + table(found))
    shares = {**first["shares"], "the rest": 1 - sum(first["shares"].values())}
    parts = [f"{name} {100 * share:.0f} %" for name, share in shares.items()]
    goes = f"Where a step's {first['step_seconds']['mean']:.2f} s goes (seed 0, mean of 60 steps, `time/*` in "
    goes += f"`metrics.jsonl`): {', '.join(parts[:2])},\n{', '.join(parts[2:])}.\n"
    return put(page, r"Where a step's .*?the rest [^\n]*\n", goes)


def recipe(text: str, found: Mapping[str, Any]) -> str:
    runs = list(found["seeds"].values())

    def shares(when: str, name: str) -> str:
        return ", ".join(f"{100 * one[when][name]:.1f}" for one in runs) + " %"

    def seconds(values: Sequence[float], form: str) -> str:
        return f"{format(min(values), form)} to {format(max(values), form)} s"

    before = f"{100 * runs[0]['before']['greedy_accuracy']:.1f} %"
    return put(
        text,
        r"# Measured on .*?(?=name: demo)",
        f"# Measured on {machine_words(found)} with `grouprl train demo seed=0` and seeds 1, 2:\n"
        f"# greedy accuracy {before} -> {shares('after', 'greedy_accuracy')};\n"
        f"# worked solutions {shares('before', 'worked_share')} -> {shares('after', 'worked_share')};\n"
        f"# {seconds([one['train_seconds'] for one in runs], '.0f')} of training, "
        f"{seconds([one['step_seconds']['median'] for one in runs], '.2f')} a step in the median, "
        f"{seconds([one['whole_seconds'] for one in runs], '.0f')} with both evaluations and the report.\n",
    )


def lora(page: str, found: Mapping[str, Any]) -> str:
    *some, last = [f"{100 * one['after']['greedy_accuracy']:.1f}" for one in found["seeds"].values()]
    end = f"(`grouprl train demo`, on {machine_words(found)}) end at {', '.join(some)} and {last} %.\n"
    return put(page, r"(?<=all weights at 2e-4)\s.*?end at [^%]*%\.\n", "\n" + end)


def put(page: str, place: str, words: str) -> str:
    """The page with these words in the one place that has the pattern."""
    page, places = re.subn(place, lambda _: words, page, flags=re.DOTALL)
    assert places == 1, f"expected one place with the pattern {place!r}, found {places}: restore it"
    return page


PLACES: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "README.md": readme,
    "docs/start.md": demo,
    "src/grouprl/recipes/demo.yaml": recipe,
    "docs/models.md": lora,
}


def written(name: str, found: Mapping[str, Any]) -> str:
    """The file with these figures in the place of those that it has."""
    return PLACES[name]((ROOT / name).read_text(encoding="utf-8"), found)


def draw(runs: Path) -> None:
    """The pictures of the README, docs/start.md and docs/lab.md."""
    from lab_pictures import addresses, charts, pictures  # needs Playwright

    browser, images = shutil.which("chromium"), ROOT / "docs" / "images"
    assert browser, "expected Chromium for the pictures, found none: install it"
    charts(runs / "demo-0" / "report.html", images, browser)
    if not (runs / COMPARISON).exists():
        settings = ("steps=20", "evaluation.problems=100", "evaluation.samples=0", "evaluation.every=5")
        vary = ("--vary", "algorithm=grpo,rloo,ppo", "--seeds", "2", "--name", COMPARISON, f"runs_dir={runs}")
        subprocess.run([sys.executable, "-m", "grouprl", "compare", "demo", *vary, *settings], check=True)
    pictures(runs, addresses("demo-0", "demo-1", COMPARISON), images, browser)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, help="the folder of the runs")
    parser.add_argument("--write", action="store_true", help=f"into {', '.join(PLACES)}")
    parser.add_argument("--smoke", action="store_true", help="a tiny run, nothing kept: whether it runs")
    given = parser.parse_args()
    if given.smoke:
        with tempfile.TemporaryDirectory() as place:
            train(Path(place), 0, "steps=2", "evaluation.problems=4", "rollout.problems_per_step=2")
            print(*(written(name, facts(Path(place), (0,))) for name in PLACES), sep="\n")
        return
    if given.runs:
        for seed in SEEDS:
            train(given.runs, seed)
        RESULTS.write_text(json.dumps(facts(given.runs), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draw(given.runs / "runs")
    for name in PLACES:
        text = written(name, json.loads(RESULTS.read_text(encoding="utf-8")))
        print(f"{name}: {'as measured' if text == (ROOT / name).read_text(encoding='utf-8') else 'other figures'}")
        if given.write:
            (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
