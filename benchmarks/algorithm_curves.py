"""One small picture of each algorithm on the bundled task, beside GRPO: docs/images/algorithm-NAME.png.

    grouprl compare demo --vary algorithm=grpo,dr_grpo,dapo,rloo,reinforce_batch,ppo,gspo,cispo --name family \
        model.threads=1 evaluation.every=2 evaluation.problems=200 evaluation.samples=0
    python benchmarks/algorithm_curves.py runs/family

The others of the family are made in the same way.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from drawing import BLUE, GRAY, STYLE, legend, over_steps, shares
from made_up import made_up_comparison
from matplotlib import rc_context
from matplotlib.figure import Figure

from grouprl.algorithms.named import NAMED
from grouprl.record.read import RecordedRun, read_run

Series = list[tuple[list[int], list[float]]]


def runs_by_name(folders: list[Path]) -> dict[str, list[RecordedRun]]:
    found = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.glob("*-seed*/config.yaml")):
            found[re.sub(r"-seed\d+$", "", path.parent.name)].append(read_run(path.parent))
    return found


def held_out(runs: list[RecordedRun]) -> Series:
    return [
        ([row["step"] for row in run.evaluations], [row["greedy_accuracy"] for row in run.evaluations]) for run in runs
    ]


def sampled(runs: list[RecordedRun]) -> Series:
    return [run.column("accuracy") for run in runs]


def draw(axes: Any, series: Series, color: str, label: str) -> None:
    steps = series[0][0]
    values = np.array([row for _, row in series])
    axes.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)
    axes.plot(steps, values.mean(0), color=color, linewidth=2, label=label)


def picture(name: str, found: dict[str, list[RecordedRun]], out: Path) -> None:
    """An algorithm's curves beside those of GRPO."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 2.5), dpi=110, layout="constrained")
        for axes, series, title in zip(
            figure.subplots(1, 2), (held_out, sampled), ("held-out, greedy", "sampled while training"), strict=True
        ):
            if name != "grpo":
                draw(axes, series(found["grpo"]), GRAY, "grpo")
            draw(axes, series(found[name]), BLUE, name)
            axes.set_title(title, fontsize=10)
            over_steps(axes)
            shares(axes, "correct")
        legend(axes)
        figure.savefig(out / f"algorithm-{name}.png", metadata={"Software": None})
    rows = [run.evaluations[-1]["greedy_accuracy"] for run in found[name]]
    print(f"{name}: {len(rows)} seeds, held-out greedy accuracy at the end {np.mean(rows):.1%}")


def pictures(comparisons: list[Path], out: Path) -> None:
    found = runs_by_name(comparisons)
    for name in (name for name in NAMED if name in found):
        picture(name, found, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("comparisons", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--smoke", action="store_true", help="a made-up comparison, nothing kept: whether it runs")
    given = parser.parse_args()
    if given.smoke:
        with tempfile.TemporaryDirectory() as place:
            pictures([made_up_comparison(Path(place))], Path(place))
        return
    pictures(given.comparisons, given.out)


if __name__ == "__main__":
    main()
