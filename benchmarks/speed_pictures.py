"""The picture of the cost curves: what is measured, and as a dashed line what it should be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drawing import BLUE, GRAY, RED, STYLE
from matplotlib import rc_context
from matplotlib.figure import Figure
from speed_rows import Curve

COLORS = {"sampling": BLUE, "learning": RED}


def expected(curve: Curve, seconds: Sequence[float]) -> list[float]:
    """Through the last point where seconds should grow in proportion, else through the first."""
    if curve.expected == "linear":
        return [seconds[-1] * point / curve.points[-1] for point in curve.points]
    if curve.expected == "flat":
        return [seconds[0] for _ in curve.points]
    return [seconds[0] * (1 - point) for point in curve.points]


def panel(axes: Any, curve: Curve) -> None:
    for kind, seconds in curve.seconds.items():
        ideal = [1e3 * value for value in expected(curve, seconds)]
        axes.plot(curve.points, ideal, color=GRAY, linestyle="--", linewidth=1.2)
        axes.plot(
            curve.points, [1e3 * value for value in seconds], color=COLORS[kind], marker="o", linewidth=2, label=kind
        )
    axes.set_title(curve.title)
    axes.set_xlabel(curve.axis)
    axes.set_ylabel("milliseconds")
    axes.set_xticks(
        curve.points, [f"{point:.0%}" if curve.expected == "falls" else f"{point}" for point in curve.points]
    )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def draw(curves: Sequence[Curve], path: Path) -> None:
    """One panel for each curve."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 6.6), dpi=130, facecolor="white", layout="constrained")
        places = figure.subplots(2, 2).flat
        for axes, curve in zip(places, curves, strict=True):
            panel(axes, curve)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        ideal = figure.axes[0].lines[0]
        figure.legend(
            [*handles, ideal], [*labels, "as it should be: in proportion, flat"], loc="outside lower center", ncols=3
        )
        figure.savefig(path, metadata={"Software": None})
