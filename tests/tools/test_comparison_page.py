"""The page of a comparison as one file, opened in a browser without a server."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.write import RunRecord
from grouprl.tools.compare.read import run_folder
from grouprl.tools.compare.report import write_comparison
from grouprl.types import StepRecord
from lab_browser import needs_chromium, opened


def synthetic(folder: Path, variants: Sequence[str], steps: int = 60, seeds: int = 3) -> Path:
    """A comparison of the shape that good runs have."""
    noise = random.Random(0)
    given = {"seeds": list(range(seeds)), "variants": {name: [f"x={name}"] for name in variants}}
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_text(folder / "comparison.json", json_text(given))
    for place, name in enumerate(variants):
        for seed in range(seeds):
            with RunRecord.create(folder / run_folder(name, seed), "seed: 0\n") as run:
                rows = []
                for step in range(steps + 1):
                    learned = 1 / (1 + math.exp(-(step / steps * 12 - 2 - 0.4 * place + noise.gauss(0, 0.3))))
                    accuracy = 0.28 + (0.715 - 0.02 * (place % 3)) * learned
                    if step % 4 == 0:
                        greedy = [int(noise.random() < accuracy) for _ in range(200)]
                        row = {"greedy_accuracy": sum(greedy) / 200, "problems": 200, "pass_at_1": accuracy - 0.02}
                        rows.append({**row, "pass_at_8": min(1.0, accuracy + 0.03)})
                        run.evaluation(step, rows[-1])
                        counts = [sum(noise.random() < accuracy for _ in range(8)) for _ in range(200)]
                        ids = [f"p{n}" for n in range(200)]
                        found = {"problem_ids": ids, "greedy": greedy, "correct": counts, "samples": 8}
                        run.held_out(step, found)
                    parts = {"time/rollout": 0.5 + learned / 3, "time/learn": 0.4 + 0.05 * place, "time/reward": 0.02}
                    metrics = {
                        **parts,
                        "time/total": sum(parts.values()) + 0.03,
                        "accuracy": accuracy,
                        "reward": accuracy + 0.5 + noise.gauss(0, 0.05),
                        "kl": 0.4 * learned * (1 + place / 3),
                        "entropy": 0.6 - 0.5 * learned,
                        "completions/mean_length": 18 + 26 * learned + noise.gauss(0, 1),
                        "completion_tokens": int(128 * (18 + 26 * learned)),
                    }
                    if step:
                        run.step(StepRecord(step, metrics, (), (), ()))
                tokens, memory = 128 * 32 * steps, 640 + 90 * place + noise.gauss(0, 8)
                run.summary({"after": rows[-1], "steps": steps, "train_seconds": 60.0, "completion_tokens": tokens,
                             "peak_rss_mib": memory, "model": "abacus", "task": "word_problems",
                             "machine": {"cpu": "AMD EPYC", "cores": 2, "threads": 1}})  # fmt: skip
    return write_comparison(folder)


@needs_chromium
@pytest.mark.slow
def test_the_page_draws_every_variant_in_a_browser_and_asks_for_nothing(tmp_path: Path) -> None:
    page = synthetic(tmp_path / "c", [f"variant {n}" for n in range(9)], steps=8, seeds=2)
    with opened(page) as shown:
        shown.page.get_by_role("heading", name="Curves").scroll_into_view_if_needed()
        shown.page.wait_for_selector(".chart-card canvas")
        assert shown.page.locator(".chart-card h3").all_inner_texts()[:2] == [
            "Held-out accuracy",
            "Unsolved held-out problems",
        ]
        assert shown.page.locator(".chart-legend.card button").count() == 9
        shown.page.get_by_role("button", name="completion tokens").click()
        shown.page.get_by_label("Smooth").uncheck()
        text = shown.page.inner_text("main")
        for part in (
            "18 of 18 runs finished",
            "Cost",
            "Where the time of a step goes",
            "AMD EPYC",
            "over seeds",
        ):
            assert part in text
        shown.watched.assert_quiet()


if __name__ == "__main__":
    import sys

    print(synthetic(Path(sys.argv[1]), ["grpo", "dr_grpo", "dapo", "rloo", "reinforce_batch", "ppo"]))
