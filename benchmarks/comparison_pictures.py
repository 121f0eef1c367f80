"""The pictures of docs/evidence.md: a comparison as PNG files, one color for each variant, the mean over its seeds.

python benchmarks/comparison_pictures.py runs/algorithms FOLDER
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from drawing import BLUE, COLORS, GRAY, RED, Plot, draw_plots, legend, over_steps, shares, smooth
from made_up import made_up_comparison
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from grouprl.tools.compare.read import (
    HeldOutEvaluation,
    RecordedComparison,
    Variant,
    against_baseline,
    held_out_curve,
    metric_by_seed,
    metric_curve,
    read_comparison,
    time_parts,
)

_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))  # beyond eight variants the colors come again, dashed


def _plot(
    name: str, title: str, caption: str, draw: Callable[[RecordedComparison, Any], None]
) -> Plot[RecordedComparison]:
    """A picture with one pair of axes, which `draw` fills."""
    return Plot(name, title, caption, lambda comparison, canvas: draw(comparison, canvas.subplots()))


def _look(comparison: RecordedComparison, variant: Variant) -> dict[str, Any]:
    # By the place among all variants: one that is not finished yet takes its color with it.
    place = comparison.variants.index(variant)
    rounds = place // len(COLORS)
    return {
        "color": COLORS[place % len(COLORS)],
        "linestyle": _DASHES[rounds % len(_DASHES)],
        # Each narrower than the one below it: of lines on top of each other all can be seen.
        "linewidth": 3.0 - 1.4 * place / max(1, len(comparison.variants) - 1),
        "label": variant.name,
    }


def _curve(axes: Any, at: Sequence[float], by_seed: Sequence[Sequence[float]], look: dict[str, Any]) -> None:
    """The mean over seeds, and the band from the lowest to the highest of them."""
    values = np.asarray(by_seed, np.float64)
    if values.size:
        marker = "o" if len(at) == 1 else ""
        axes.plot(at, values.mean(0), marker=marker, **look)
        axes.fill_between(at, values.min(0), values.max(0), color=look["color"], alpha=0.14, linewidth=0)


def _held_out(where: Callable[[HeldOutEvaluation], float]) -> Callable[[RecordedComparison, Any], None]:
    def draw(comparison: RecordedComparison, axes: Any) -> None:
        for variant in comparison.finished:
            curve = held_out_curve(variant)
            by_seed = np.array([point.accuracies for point in curve]).T
            _curve(axes, [where(point) for point in curve], by_seed.tolist(), _look(comparison, variant))
        shares(axes, "solved held-out problems")
        axes.margins(x=0.01)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        legend(axes)

    return draw


def _held_out_steps(comparison: RecordedComparison, axes: Any) -> None:
    _held_out(lambda point: point.step)(comparison, axes)
    over_steps(axes)


def _held_out_tokens(comparison: RecordedComparison, axes: Any) -> None:
    _held_out(lambda point: point.tokens)(comparison, axes)
    axes.set_xlabel("sampled completion tokens")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _held_out_seconds(comparison: RecordedComparison, axes: Any) -> None:
    _held_out(lambda point: point.seconds)(comparison, axes)
    axes.set_xlabel("seconds of training")


def _unsolved(comparison: RecordedComparison, axes: Any) -> None:
    for variant in comparison.finished:
        curve = held_out_curve(variant)
        # A policy that solves all is drawn as if it failed at half a problem: 0 has no place on this axis.
        by_seed = np.array([[max(1 - share, 0.5 / point.problems) for share in point.accuracies] for point in curve]).T
        _curve(axes, [point.step for point in curve], by_seed.tolist(), _look(comparison, variant))
    axes.set_yscale("log")
    axes.set_ylabel("unsolved held-out problems")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    over_steps(axes)
    legend(axes)


def _metric(name: str, ylabel: str, *, from_zero: bool = False) -> Callable[[RecordedComparison, Any], None]:
    def draw(comparison: RecordedComparison, axes: Any) -> None:
        for variant in comparison.finished:
            steps, by_seed = metric_curve(variant, name)
            smoothed = [smooth(values).tolist() for values in by_seed] if steps else []
            _curve(axes, steps, smoothed, _look(comparison, variant))
        axes.set_ylabel(ylabel)
        axes.set_ylim(bottom=0 if from_zero else None)
        over_steps(axes)
        legend(axes)

    return draw


def _differences(comparison: RecordedComparison, axes: Any) -> None:
    others = [variant for variant in comparison.finished if variant is not comparison.baseline]
    for offset, label, color, over in ((-0.14, "over problems", BLUE, 0), (0.14, "over seeds", RED, 1)):
        found = [against_baseline(comparison, variant, "greedy_accuracy") for variant in others]
        kinds = [(row.over_problems, row.over_seeds)[over] for row in found]
        places = [(place + offset, kind) for place, kind in enumerate(kinds) if kind is not None]
        if places:
            heights, differences = zip(*places, strict=True)
            means = [difference.mean for difference in differences]
            ends = [difference.interval or (difference.mean,) * 2 for difference in differences]
            errors = [[mean - low, high - mean] for mean, (low, high) in zip(means, ends, strict=True)]
            axes.errorbar(
                means, heights, xerr=np.array(errors).T, fmt="o", color=color, capsize=3, markersize=5, label=label
            )
    axes.axvline(0, color=GRAY, linewidth=1, zorder=0)
    axes.set_yticks(range(len(others)), [variant.name for variant in others])
    axes.set_ylim(max(1, len(others)) - 0.5, -0.5)
    axes.set_xlabel(f"difference to {comparison.baseline.name}, in points")
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:+g}" if share else "0")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    legend(axes)


def _time(comparison: RecordedComparison, axes: Any) -> None:
    parts = {variant.name: time_parts(variant) for variant in comparison.finished}
    every = [name for name in dict.fromkeys(name for split in parts.values() for name in split) if name != "other"]
    left = np.zeros(len(parts))
    for name, color in zip((*every, "other"), (*COLORS[: len(every)], GRAY), strict=False):
        widths = np.array([split.get(name, 0.0) for split in parts.values()])
        if widths.any():
            axes.barh(range(len(parts)), widths, 0.62, left=left, color=color, label=name)
        left = left + widths
    _bars(axes, list(parts))
    axes.set_xlabel("seconds per step")
    legend(axes)


def _memory(comparison: RecordedComparison, axes: Any) -> None:
    figures = {variant.name: metric_by_seed(variant, "peak_rss_mib") for variant in comparison.finished}
    known = {name: list(found.by_seed.values()) for name, found in figures.items() if found.by_seed}
    means = [fmean(values) for values in known.values()]
    if known:
        spread = [[mean - min(v) for mean, v in zip(means, known.values(), strict=True)]]
        spread += [[max(v) - mean for mean, v in zip(means, known.values(), strict=True)]]
        axes.barh(range(len(known)), means, 0.62, color=BLUE, xerr=spread, error_kw={"ecolor": "#222222", "capsize": 3})
    for place, values in enumerate(known.values()):
        axes.annotate(
            f"{fmean(values):,.0f}", (max(values), place), (6, 0), textcoords="offset points", va="center", fontsize=9
        )
    _bars(axes, list(known))
    axes.margins(x=0.14)
    axes.set_xlabel("MiB")


def _bars(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")


PLOTS: tuple[Plot[RecordedComparison], ...] = (
    _plot(
        "held_out_steps",
        "Held-out accuracy by step",
        "Share of held-out problems solved greedily: what a variant makes of a number of updates.",
        _held_out_steps,
    ),
    _plot(
        "held_out_tokens",
        "Held-out accuracy by sampled tokens",
        "The same against the completion tokens sampled so far: what it makes of an amount of experience. A variant "
        "that samples more in a step, or writes longer completions, reaches further to the right.",
        _held_out_tokens,
    ),
    _plot(
        "held_out_seconds",
        "Held-out accuracy by time",
        "The same against seconds of training, evaluations apart: what it makes of this machine's time.",
        _held_out_seconds,
    ),
    _plot(
        "unsolved",
        "Unsolved problems by step",
        "One less the accuracy, on a logarithmic axis, which keeps policies apart that solve nearly everything. One "
        "that solves all of them is drawn at half a problem.",
        _unsolved,
    ),
    _plot(
        "differences",
        "Difference after the last step",
        "Held-out greedy accuracy less that of the baseline, with paired 95% intervals over problems (which problems "
        "were drawn) and over seeds (run to run). An interval that holds 0 leaves open which of the two is better.",
        _differences,
    ),
    _plot(
        "accuracy",
        "Sampled accuracy while training",
        "Share of the sampled completions of a step that are correct, on the problems it trains on. It keeps variants "
        "apart for longer than greedy accuracy, which a policy reaches as soon as its likeliest completion is right.",
        _metric("accuracy", "correct completions"),
    ),
    _plot(
        "reward",
        "Training reward",
        "Mean reward of the sampled completions. Variants that shape the reward are not on one scale.",
        _metric("reward", "mean reward"),
    ),
    _plot(
        "kl",
        "Distance from the reference",
        "Estimated KL to the reference. A variant without a reference has no line.",
        _metric("kl", "nats per token"),
    ),
    _plot(
        "length",
        "Completion length",
        "Mean tokens of a sampled completion.",
        _metric("completions/mean_length", "tokens", from_zero=True),
    ),
    _plot(
        "entropy",
        "Entropy",
        "How varied the choices of the policy still are.",
        _metric("entropy", "nats per token", from_zero=True),
    ),
    _plot(
        "time",
        "Where the time of a step goes",
        "Mean seconds of a step by what they were spent on.",
        _time,
    ),
    _plot(
        "memory",
        "Peak memory",
        "The most resident memory of the run's process: bars are means over seeds, whiskers lowest and highest.",
        _memory,
    ),
)


def main() -> None:
    """Draws every picture; `--smoke` draws those of a made-up comparison and keeps none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("comparison", type=Path, nargs="?", help="its folder")
    parser.add_argument("out", type=Path, nargs="?", help="where the pictures go")
    parser.add_argument("--smoke", action="store_true", help="a made-up comparison, nothing kept: whether it runs")
    given = parser.parse_args()
    if not given.smoke and given.out is None:
        parser.error("expected the folder of a comparison and one for the pictures")
    with tempfile.TemporaryDirectory() as place:
        comparison = made_up_comparison(Path(place)) if given.smoke else given.comparison
        for _, path in draw_plots(PLOTS, read_comparison(comparison), Path(place) if given.smoke else given.out):
            print(path)


if __name__ == "__main__":
    main()
