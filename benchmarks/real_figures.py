"""A picture of runs that differ in their seed alone: right answers by step, and completions before and after.

    python benchmarks/real_figures.py runs/smollm2_sums runs/smollm2_sums-1 --image docs/images/real-sums.png
    python benchmarks/real_figures.py runs/svamp-0 runs/svamp-1 --image docs/images/real-svamp.png --held-out

prints a table row for each run as well.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo_figures import train
from drawing import BLUE, COLORS, GRAY, GREEN, RED, STYLE, over_steps, shares, smooth
from matplotlib import rc_context
from matplotlib.figure import Figure

from grouprl.evaluation.paired import ProblemResults, paired_by_name

PROBLEMS, LINE, QUESTION = 3, 46, 64  # shown, and characters of a line of a completion and of a question


def load(run: Path, name: str) -> Any:
    """A JSON file of a run directory."""
    return json.loads((run / name).read_text(encoding="utf-8"))


def row(run: Path) -> str:
    """Accuracy before and after with intervals, paired differences in points, answers in any form, lengths, seconds."""
    summary = load(run, "summary.json")
    lines = (run / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    results = [read for line in lines if (read := ProblemResults.read(json.loads(line))) is not None]
    before, after = results[0], results[-1]
    pairs = {
        "greedy_accuracy": (after.greedy_by_problem, before.greedy_by_problem),
        "pass_at_1": (after.sampled_by_problem, before.sampled_by_problem),
    }
    cells = [run.name]
    for name, interval in (("greedy_accuracy", "greedy_interval"), ("pass_at_1", "pass_at_1_interval")):
        for when in ("before", "after"):
            low, high = summary[when][interval]
            cells.append(f"{summary[when][name]:.1%} ({low:.1%} to {high:.1%})")
        difference = paired_by_name(*pairs[name])
        if difference is not None and difference.interval is not None:
            low, high = difference.interval
            cells.append(f"{100 * difference.mean:+.1f} ({100 * low:.1f} to {100 * high:.1f})")
    both = [summary[when] for when in ("before", "after")]
    if "rewards/last_number/mean" in both[0]:
        cells += [f"{measured['rewards/last_number/mean']:.1%}" for measured in both]
    cells += [f"{measured['mean_length']:.1f}" for measured in both]
    return f"| {' | '.join(cells)} | {summary['train_seconds']:.0f} s |"


def curves(axes: Any, runs: Sequence[Path], *, held_out: bool) -> None:
    """The mean reward of each step, raw and smoothed, or raw with pass@1 on held-out problems."""
    for run, color in zip(runs, COLORS * len(runs), strict=False):
        label = f"seed {load(run, 'summary.json')['seed']}"
        trained, evaluated = (
            [json.loads(line) for line in (run / name).read_text(encoding="utf-8").splitlines()]
            for name in ("metrics.jsonl", "evaluations.jsonl")
        )
        steps, values = [row["step"] for row in trained], [row["reward"] for row in trained]
        axes.plot(steps, values, color=color, alpha=0.3, linewidth=1)
        if held_out:
            points = [row["step"] for row in evaluated], [row["pass_at_1"] for row in evaluated]
            axes.plot(*points, color=color, linewidth=2, marker="o", label=label)
        else:
            axes.plot(steps, smooth(values), color=color, linewidth=2, label=label)
    shares(axes, "right samples" if held_out else "mean reward")
    if held_out:
        axes.set_ylim(0, 1.05 * max(line.get_ydata().max() for line in axes.lines))
    over_steps(axes)
    axes.legend(loc="upper left" if held_out else "lower right")
    axes.set_title("Held-out problems (thin: while training)" if held_out else "Right answers while training")


def standing(axes: Any, runs: Sequence[Path]) -> None:
    """How many held-out problems were right before and after, became right, and became wrong, by greedy decoding."""
    names = [f"seed {load(run, 'summary.json')['seed']}" for run in runs]
    counts = []
    for run in runs:
        lines = [json.loads(line) for line in (run / "held_out.jsonl").read_text(encoding="utf-8").splitlines()]
        counts.append(Counter(zip(lines[0]["greedy"], lines[-1]["greedy"], strict=True)))
    left = [0] * len(runs)
    for pair, label, color in (
        ((1, 1), "right before and after", BLUE),
        ((0, 1), "right only after", GREEN),
        ((1, 0), "right only before", RED),
    ):
        widths = [count[pair] for count in counts]
        bars = axes.barh(names, widths, left=left, color=color, label=label, height=0.55)
        axes.bar_label(bars, label_type="center", color="white", fontweight="bold")
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlim(0, sum(counts[0].values()))
    axes.set_xlabel(f"of {sum(counts[0].values())} held-out problems")
    axes.legend(loc="center right")
    axes.set_title("Greedy, before and after")


def completions(axes: Any, run: Path) -> None:
    """Greedy completions of held-out problems, before and after."""
    shown = load(run, "examples.json")
    axes.set_axis_off()
    axes.set_title("Held-out problems, greedy")
    # First those that the training changed.
    pairs = sorted(
        zip(shown["before"], shown["after"], strict=True), key=lambda pair: pair[0]["correct"] >= pair[1]["correct"]
    )
    height = 1.0
    for before, after in pairs[:PROBLEMS]:
        question = textwrap.wrap(before["prompt"].strip().splitlines()[-1].replace("$", r"\$"), QUESTION)
        for number, line in enumerate(question):
            height -= 0.075 if number else 0.0
            axes.text(0, height, line, fontweight="bold", fontsize=9, va="top", transform=axes.transAxes)
        for label, one in (("before", before), ("after", after)):
            height -= 0.085
            text = " ".join(one["completion"].split())
            text = text if len(text) <= LINE else f"{text[: LINE - 1]}…"
            color = GRAY if one["correct"] is None else BLUE if one["correct"] else RED
            axes.text(0.02, height, label, color=GRAY, va="top", transform=axes.transAxes)
            axes.text(
                0.18, height, text, color=color, va="top", family="monospace", fontsize=8.5, transform=axes.transAxes
            )
        height -= 0.12


def draw(runs: Sequence[Path], image: Path, *, held_out: bool) -> None:
    """The picture."""
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.4), dpi=170, layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        curves(left, runs, held_out=held_out)
        if held_out:
            standing(right, runs)
        else:
            completions(right, runs[0])
        figure.savefig(image, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--held-out", action="store_true", help="pass@1 on held-out problems by step")
    parser.add_argument("--smoke", action="store_true", help="a tiny run, nothing kept: whether it runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if given.smoke:
            train(Path(place), 0, "steps=2", "evaluation.problems=4", "rollout.problems_per_step=2")
            given.runs, given.image = [Path(place) / "runs" / "demo-0"], Path(place) / "picture.png"
        print(*map(row, given.runs), sep="\n")
        if given.image:
            draw(given.runs, given.image, held_out=given.held_out)
        if given.smoke:
            draw(given.runs, given.image, held_out=True)


if __name__ == "__main__":
    main()
