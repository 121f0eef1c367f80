"""The SHA-256 of what fixed-seed runs compute: a change that leaves the arithmetic alone leaves every line as it is.

    python benchmarks/same_bits.py > before.txt        # and after the change: ... | diff before.txt -

Each run is a few steps of the bundled model; hashed are its weights, its metrics without times and memory, and its
recorded completions. The numbers differ between processors and versions of torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = 6
SMALL = ("rollout.problems_per_step=4", "rollout.group_size=4", "rollout.max_tokens=48", "evaluation.problems=8")
RUNS: Mapping[str, tuple[str, ...]] = {
    "demo": (),
    "bfloat16": ("model.dtype=bfloat16",),
    "dapo": ("algorithm=dapo", "algorithm.minibatches=2"),
    "ppo": ("algorithm=ppo",),
    "gspo": ("algorithm=gspo", "algorithm.minibatches=2"),
    "lora": ("model.lora.rank=4",),
    "process": ("algorithm=grpo_process",),
    "correction": ("algorithm.minibatches=2", "algorithm.correction_kind=truncate"),
    "examples": ("task.examples=2",),
    "distill": ("algorithm.distill_coef=0.1",),
    "calculator": ("calculator", "rollout.max_tokens=96"),  # another recipe: its model calls a tool
}
VARIES = ("time/", "memory/", "tokens_per_second", "gpu", "rss", "seconds", "peak")  # between runs of the same code


def command(folder: Path, name: str, changes: tuple[str, ...]) -> list[str]:
    """A run of the demo with changes; changes that begin with a recipe replace the demo's."""
    recipe = () if changes and "=" not in changes[0] else ("demo",)
    words = (*SMALL, *changes, f"steps={STEPS}", f"runs_dir={folder}", "checkpoint.every=2")
    return ["train", *recipe, *words, "--name", name]


def start(words: list[str], *launcher: str) -> subprocess.Popen[bytes]:
    """The process of a run, with the code of this folder and one thread."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *(launcher or ("-m",)), "grouprl", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(run: subprocess.Popen[bytes]) -> None:
    """Waits for the end of a run; raises if it failed."""
    printed = run.communicate()[0].decode()
    if run.returncode:
        raise SystemExit(f"{' '.join(map(str, run.args))}\n{printed[-3000:]}")  # type: ignore[arg-type]


def killed(folder: Path, name: str) -> None:
    """Runs the demo, kills it after its third step, and resumes it."""
    run, metrics = start(command(folder, name, ())), folder / name / "metrics.jsonl"
    while run.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3):
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    finish(start(["train", "--resume", str(folder / name)]))


def digests(run: Path) -> Iterator[tuple[str, str]]:
    """Names and SHA-256 of what a run computed."""
    weights = hashlib.sha256()
    for path in sorted((run / "checkpoints" / f"step-{STEPS:06d}").rglob("*.safetensors")):
        weights.update(path.read_bytes())
    yield "weights", weights.hexdigest()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [{key: value for key, value in row.items() if not any(word in key for word in VARIES)} for row in rows]
    yield "metrics", hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    with sqlite3.connect(run / "rollouts.sqlite") as database:
        order = "SELECT step, group_index, completion_index, text, reward, components FROM completions ORDER BY 1, 2, 3"
        yield "completions", hashlib.sha256(repr(database.execute(order).fetchall()).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="RUN")
    parser.add_argument("--smoke", action="store_true", help="one run: whether it works")
    given = parser.parse_args()
    chosen = given.only or (("demo",) if given.smoke else (*RUNS, "killed", "two ranks"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in chosen:
            label = name.replace(" ", "_")
            if name == "killed":
                killed(folder, label)
            elif name == "two ranks":
                launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
                finish(start(command(folder, label, ("distributed.exact=true",)), *launcher))
            else:
                finish(start(command(folder, label, RUNS[name])))
            for what, digest in digests(folder / label):
                print(f"{name:<12}{what:<13}{digest}", flush=True)


if __name__ == "__main__":
    main()
