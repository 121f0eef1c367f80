"""Turns a comparison into one self-contained page, report.html, its plots, and summary.json with every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from grouprl.compare.read import (
    COMPARISON_FILE,
    RUN_FIGURES,
    THRESHOLD,
    WINDOW,
    Against,
    Figure,
    RecordedComparison,
    Variant,
    against_baseline,
    figure,
    held_out_curve,
    read_comparison,
    run_folder,
    time_parts,
)
from grouprl.evaluation.paired import Difference
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory
from grouprl.report.pages import page, picture

SAMPLED = {"sampled_accuracy": "sampled, last tenth of training", "pass_at_1": "pass@1", "pass_at_8": "pass@8"}
COSTS = {
    "steps_to_90": (f"greedy to {THRESHOLD:.0%}: steps", "{:,.0f}"),
    "tokens_to_90": ("tokens", "{:,.0f}"),
    "seconds_to_90": ("seconds", "{:,.1f}"),
    "sampled_steps_to_90": (f"sampled to {THRESHOLD:.0%}: steps", "{:,.1f}"),
    "sampled_tokens_to_90": ("tokens", "{:,.0f}"),
    "sampled_seconds_to_90": ("seconds", "{:,.1f}"),
    "seconds_per_step": ("seconds per step", "{:.2f}"),
    "completion_tokens": ("completion tokens in all", "{:,.0f}"),
    "peak_rss_mib": ("peak memory, MiB", "{:,.0f}"),
}
FILES = {
    COMPARISON_FILE: "what was compared; `grouprl compare` takes it",
    "summary.json": "every number of this page",
    "plots": "the plots as PNG files",
}


@dataclass(frozen=True)
class Cell:
    """A number of a table as text, with what stands small below it."""

    text: str
    small: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A variant's row."""

    name: str
    settings: str
    cells: tuple[Cell, ...]


def write_comparison(directory: Path) -> Path:
    """Draws plots/, writes summary.json and report.html from the finished runs; gives the path of the page.

    Raises:
        UserError: when `directory` holds no comparison, or a file of a run is damaged.
    """
    # These bring in matplotlib, which nothing else needs.
    from grouprl.compare.plots import PLOTS
    from grouprl.report.drawing import draw_plots

    comparison = read_comparison(directory)
    atomic_write_text(RunDirectory(directory).summary, json_text(summary(comparison), indent=2) + "\n")
    drawn = draw_plots(PLOTS, comparison, RunDirectory(directory).plots)
    measured = [name for name in SAMPLED if any(figure(variant, name).by_seed for variant in comparison.finished)]
    text = page("comparison.html.j2").render(
        title=directory.resolve().name,
        subtitle=_subtitle(comparison),
        verdict=comparison_verdict(comparison),
        baseline=comparison.baseline.name,
        sampled=[SAMPLED[name] for name in measured],
        accuracies=[_accuracies(comparison, variant, measured) for variant in comparison.variants],
        threshold=f"{THRESHOLD:.0%}",
        window=WINDOW,
        cost_names=[name for name, _ in COSTS.values()],
        costs=[_costs(variant) for variant in comparison.finished],
        pictures=[picture(plot.title, plot.caption, path) for plot, path in drawn],
        runs=[(v.name, [run_folder(v.name, seed) for seed in v.runs]) for v in comparison.finished],
        files=[(name, what) for name, what in FILES.items() if (directory / name).exists()],
        machine=_machine(comparison),
    )
    path = RunDirectory(directory).report
    atomic_write_text(path, text)
    return path


def comparison_verdict(comparison: RecordedComparison) -> str:
    """What came of the comparison, in one or two sentences."""
    accuracies = {variant.name: figure(variant, "greedy_accuracy").mean for variant in comparison.finished}
    known = {name: value for name, value in accuracies.items() if value is not None}
    if len(comparison.finished) > 1 and not known:
        return (
            "No accuracy to compare by: nothing says which completions are correct. The curves show reward and length."
        )
    if len(known) < 2 or not comparison.baseline.runs:
        done = ", ".join(known) or "none"
        return f"Nothing to compare yet: expected finished runs of two variants, the baseline among them, got {done}."
    highest = max(known.values())
    best = [name for name, value in known.items() if value == highest]
    solved = f"with {highest:.1%} of the held-out problems solved"
    if comparison.baseline.name in best:
        return f"No variant ends above {comparison.baseline.name}, the baseline, {solved}."
    variant = next(variant for variant in comparison.finished if variant.name == best[0])
    ahead = 100 * (highest - known[comparison.baseline.name])
    found = _certainty(against_baseline(comparison, variant, "greedy_accuracy"))
    who = best[0] if len(best) == 1 else f"{', '.join(best[:-1])} and {best[-1]}"
    ends = "ends" if len(best) == 1 else "end"
    return f"{who} {ends} highest {solved}, {ahead:.1f} points above {comparison.baseline.name}, {found}."


def _certainty(found: Against) -> str:
    """What the two intervals allow to be said of a difference."""
    kinds = {"problems": found.over_problems, "seeds": found.over_seeds}
    ends = {name: kind.interval for name, kind in kinds.items() if kind is not None and kind.interval is not None}
    with_zero = [name for name, (low, high) in ends.items() if low <= 0 <= high]
    if with_zero:
        return f"which is within chance: 0 lies in its 95% interval over {' and in that over '.join(with_zero)}"
    if "seeds" not in ends:
        return "on one seed, which leaves open what another would say"
    return f"which is beyond chance: 0 lies outside its 95% interval over {' and outside that over '.join(ends)}"


def summary(comparison: RecordedComparison) -> dict[str, Any]:
    """Every number of the page, as the plain values of summary.json."""
    return {
        "verdict": comparison_verdict(comparison),
        "baseline": comparison.baseline.name,
        "seeds": comparison.seeds,
        "threshold": THRESHOLD,
        "variants": {variant.name: _variant_summary(comparison, variant) for variant in comparison.variants},
    }


def _variant_summary(comparison: RecordedComparison, variant: Variant) -> dict[str, Any]:
    figures = {name: figure(variant, name) for name in RUN_FIGURES}
    against = {name: against_baseline(comparison, variant, name) for name in ("greedy_accuracy", "pass_at_1")}
    return {
        "settings": variant.settings,
        "runs": {seed: run_folder(variant.name, seed) for seed in variant.runs},
        "figures": {
            name: {"mean": found.mean, "interval": found.interval, "by_seed": found.by_seed}
            for name, found in figures.items()
            if found.by_seed
        },
        "against_baseline": {
            name: asdict(found) for name, found in against.items() if variant is not comparison.baseline
        },
        "held_out": [asdict(point) | {"mean": fmean(point.accuracies)} for point in held_out_curve(variant)],
        "seconds_by_part": time_parts(variant),
    }


# Tables


def _accuracies(comparison: RecordedComparison, variant: Variant, sampled: Sequence[str]) -> Line:
    found = against_baseline(comparison, variant, "greedy_accuracy")
    return Line(
        variant.name,
        " ".join(variant.settings),
        (
            _share(figure(variant, "greedy_accuracy")),
            *(
                Cell("") if variant is comparison.baseline else _difference(kind)
                for kind in (found.over_problems, found.over_seeds)
            ),
            *(_share(figure(variant, name)) for name in sampled),
            Cell(f"{len(variant.runs)} of {len(comparison.seeds)}"),
        ),
    )


def _share(found: Figure) -> Cell:
    if found.mean is None:
        return Cell("–")
    bounds = found.interval and f"{100 * max(0.0, found.interval[0]):.1f}–{min(1.0, found.interval[1]):.1%}"
    return Cell(f"{found.mean:.1%}", (bounds,) if bounds else ())


def _difference(found: Difference | None) -> Cell:
    if found is None:
        return Cell("–")
    small = found.interval and f"{_points(found.interval[0])} to {_points(found.interval[1])}"
    return Cell(_points(found.mean), (small,) if small else ())


def _points(share: float) -> str:
    """A difference of shares in percentage points.

    >>> _points(0.0123), _points(-0.5)
    ('+1.2', '−50.0')
    """
    return f"{100 * share:+.1f}".replace("-", "−")


def _costs(variant: Variant) -> Line:
    return Line(variant.name, "", tuple(_cost(variant, name, form) for name, (_, form) in COSTS.items()))


def _cost(variant: Variant, name: str, form: str) -> Cell:
    found = figure(variant, name)
    if found.mean is None:
        return Cell("–")
    missing = len(variant.runs) - len(found.by_seed)
    return Cell(form.format(found.mean), (f"{len(found.by_seed)} of {len(variant.runs)} seeds",) if missing else ())


def _subtitle(comparison: RecordedComparison) -> str:
    runs = sum(len(variant.runs) for variant in comparison.variants)
    planned = len(comparison.variants) * len(comparison.seeds)
    facts = next((run.summary for variant in comparison.finished for run in variant.runs.values()), {})
    names = [f"{name} {facts[name]}" for name in ("model", "task") if name in facts]
    return " · ".join([*names, f"{runs} of {planned} runs finished"])


def _machine(comparison: RecordedComparison) -> list[tuple[str, str]]:
    """Facts about the machine that every run has the same of."""
    machines = [run.summary.get("machine", {}) for variant in comparison.finished for run in variant.runs.values()]
    shared = machines[0].items() if machines else ()
    return [(name, str(value)) for name, value in shared if all(other.get(name) == value for other in machines)]
