"""pass@k of two models, such as before and after training: what an evaluation printed as JSON, as a picture.

grouprl eval runs/demo --pass-at 256 --beside abacus --json > pass_at.json
python benchmarks/pass_at.py pass_at.json docs/images
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from drawing import COLORS, Plot, draw_plots, legend, shares
from matplotlib.figure import Figure

Evaluations = dict[str, dict[str, Any]]  # by the name of the model


def draw(models: Evaluations, figure: Figure) -> None:
    axes = figure.subplots()
    for (name, metrics), color in zip(models.items(), COLORS, strict=False):
        counts = sorted(int(key.rpartition("_")[2]) for key in metrics if key.removeprefix("pass_at_").isdecimal())
        lows, highs = zip(*(metrics[f"pass_at_{k}_interval"] for k in counts), strict=True)
        axes.plot(counts, [metrics[f"pass_at_{k}"] for k in counts], "-o", color=color, markersize=4, label=name)
        axes.fill_between(counts, lows, highs, color=color, alpha=0.18, linewidth=0)
        axes.set_xticks(counts, list(map(str, counts)), minor=False)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda k, _: f"{k:g}")
    axes.set_xlabel("k completions of a problem")
    shares(axes, "problems with a right one")
    legend(axes)


PLOTS = (Plot("pass_at_k", "pass@k before and after training", "Bands: 95 % intervals over problems.", draw),)


def main() -> None:
    """Draws pass_at_k.png; `--smoke` draws invented numbers and keeps nothing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="what `grouprl eval --pass-at K --json` printed")
    parser.add_argument("out", type=Path, nargs="?", help="folder of the picture")
    parser.add_argument("--smoke", action="store_true", help="invented numbers, nothing kept: whether it runs")
    given = parser.parse_args()
    if not given.smoke and given.out is None:
        parser.error("expected what an evaluation printed, and a folder for the picture")
    made_up = {
        "a": {"pass_at_1": 0.2, "pass_at_2": 0.3, "pass_at_1_interval": [0.1, 0.3], "pass_at_2_interval": [0, 1]}
    }
    with tempfile.TemporaryDirectory() as place:
        models = made_up if given.smoke else json.loads(given.file.read_text())["models"]
        for _, path in draw_plots(PLOTS, models, Path(place) if given.smoke else given.out):
            print(path)


if __name__ == "__main__":
    main()
