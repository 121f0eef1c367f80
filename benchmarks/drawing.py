"""How every plot looks: style, colors, lines over steps, stacked areas, axes of shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grouprl.record.read import RecordedRun

# Okabe and Ito's colors, which people with any kind of color vision can distinguish.
BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
INK, OLIVE = "#1B1F24", "#8A8A2C"  # their black, and in place of their yellow one that is seen on white
GRAY = "#8C8C8C"
COLORS = (BLUE, RED, GREEN, PURPLE, SKY, ORANGE, INK, OLIVE)

STYLE = {
    "font.size": 10.0,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "legend.frameon": False,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
}


SIZE_INCHES = (5.6, 3.3)
DOTS_PER_INCH = 170

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Plot(Generic[Subject]):
    """A picture of a run or of a comparison: its name, what it says and what to worry about, and how it is drawn."""

    name: str  # file name without .png
    title: str
    caption: str
    draw: Callable[[Subject, Figure], None]


def draw_plots(
    plots: Sequence[Plot[Subject]], subject: Subject, directory: Path
) -> tuple[tuple[Plot[Subject], Path], ...]:
    """Writes NAME.png into `directory` for every plot that there are numbers for; gives them in reading order."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for plot in plots:
        path = directory / f"{plot.name}.png"
        with rc_context(STYLE):
            figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
            plot.draw(subject, figure)
            if any(axes.has_data() for axes in figure.axes):
                figure.axes[0].set_title(plot.title)
                figure.savefig(path, metadata={"Software": None})
                drawn.append((plot, path))
    return tuple(drawn)


def smooth(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The centered moving mean over about a tenth of the values; at the ends, over what there is of the window."""
    window = max(1, len(values) // 10) | 1
    start, stop = window // 2, window // 2 + len(values)
    sums = np.convolve(np.asarray(values, np.float64), np.ones(window))
    counts = np.convolve(np.ones(len(values)), np.ones(window))
    return (sums / counts)[start:stop]


def lines(axes: Any, run: RecordedRun, labels: Mapping[str, str], ylabel: str) -> None:
    """Draws metrics over steps, raw in a light color and smoothed in a strong one; it skips absent metrics."""
    for (name, label), color in zip(labels.items(), COLORS * len(labels), strict=False):
        steps, values = run.column(name)
        if steps:
            axes.plot(steps, values, color=color, alpha=0.3, linewidth=1, marker=".", markersize=3)
            marker = "o" if len(steps) == 1 else ""  # a line of one point is invisible
            axes.plot(steps, smooth(values), color=color, linewidth=2, marker=marker, label=label)
    axes.set_ylabel(ylabel)
    over_steps(axes)
    legend(axes)


def stack(axes: Any, steps: Sequence[int], parts: Mapping[str, Sequence[float]], colors: Sequence[str]) -> None:
    """Draws parts of a whole on top of each other, each step as wide as one."""
    edges = np.repeat(steps, 2) + np.tile([-0.5, 0.5], len(steps))
    heights = [np.repeat(values, 2) for values in parts.values()]
    axes.stackplot(edges, heights, labels=list(parts), colors=colors, linewidth=0)
    over_steps(axes)
    legend(axes, reverse=True)  # in the order of the areas, top to bottom


def over_steps(axes: Any) -> None:
    """Makes the horizontal axis count training steps."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.margins(x=0.01)


def shares(axes: Any, ylabel: str) -> None:
    """Makes the vertical axis run from 0 to 100 %."""
    axes.set_ylabel(ylabel)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def legend(axes: Any, reverse: bool = False) -> None:
    """Names what is drawn, beside the plot, where it hides nothing. Without names there is no legend."""
    handles, labels = axes.get_legend_handles_labels()
    if any(labels):
        axes.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.02),
            borderaxespad=0.3,
            handlelength=1.2,
            reverse=reverse,
        )
