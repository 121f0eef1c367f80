"""Writes report.html, the page of a comparison with its data inside, and summary.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from grouprl.files import is_number
from grouprl.leaves import find_leaf
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory
from grouprl.tools.compare.claims import answer_claims, claims_summary, claims_table
from grouprl.tools.compare.read import (
    THRESHOLD,
    WINDOW,
    MetricBySeed,
    RecordedComparison,
    Variant,
    against_baseline,
    held_out_curve,
    metric_by_seed,
    metric_curve,
    read_comparison,
    time_parts,
    totals,
)
from grouprl.types import counted

CURVES = (
    *("accuracy", "reward", "kl", "completions/mean_length", "entropy"),
    *("grad_norm", "frac_reward_zero_std", "tokens_per_second"),
)


def write_comparison(directory: Path) -> Path:
    """Writes summary.json and, with the lab, report.html from the finished runs; returns the path of the page.

    Where the comparison answers claims it also writes claims.md, their table.

    Raises:
        UserError: `directory` has no comparison, or a file of a run is damaged.
    """
    comparison = read_comparison(directory)
    values = summary(comparison)
    atomic_write_text(RunDirectory(directory).summary, json_text(values, indent=2) + "\n")
    if comparison.claims:
        atomic_write_text(directory / "claims.md", "\n".join(claims_table(values["claims"])) + "\n")
    write_page = find_leaf("comparison")
    if write_page is not None:
        write_page(directory, comparison_answer(comparison))
    return RunDirectory(directory).report


def comparison_answer(comparison: RecordedComparison) -> dict[str, Any]:
    """Makes the data of the page: `summary`, the curves of each variant, and the common settings of its runs."""
    facts = [run.summary for variant in comparison.finished for run in variant.runs.values()]
    machines = [run.get("machine", {}) for run in facts]
    shared = [item for item in machines[0].items() if all(item in other.items() for other in machines)] if facts else []
    values = summary(comparison)
    return {
        **values,
        "name": comparison.directory.resolve().name,
        "window": WINDOW,
        "about": {name: facts[0][name] for name in ("model", "task") if facts and name in facts[0]},
        "machine": {name: str(value) for name, value in shared},  # equal in all runs
        "variants": [
            {"name": variant.name, **values["variants"][variant.name], **_curves(variant)}
            for variant in comparison.variants
        ],
    }


def comparison_verdict(comparison: RecordedComparison) -> str:
    """Summarizes the result of the comparison in one or two sentences."""
    if comparison.claims:
        counts = Counter[str](answer.verdict for answer in answer_claims(comparison))
        words = {"holds": "holds here"}
        verdicts = ("holds", "does not hold", "undecided", "not measured yet")
        tally = ", ".join(f"{words.get(verdict, verdict)} {counts[verdict]}" for verdict in verdicts if counts[verdict])
        return f"{counted(len(comparison.claims), 'claim')}: {tally}."
    measure = comparison_measure(comparison)
    means = {variant.name: metric_by_seed(variant, measure).mean for variant in comparison.finished}
    known_means = {name: value for name, value in means.items() if value is not None}
    if len(comparison.finished) > 1 and not known_means:
        return "No accuracy to compare: the task has no verifier. The curves show reward and length."
    if len(known_means) < 2 or not comparison.baseline.runs:
        done = ", ".join(known_means) or "none"
        return f"Nothing to compare yet: expected finished runs of two variants, the baseline among them, got {done}."
    highest = max(known_means.values())
    best = [name for name, value in known_means.items() if value == highest]
    by_reward = measure == "reward"
    solved = (
        f"with a held-out mean reward of {highest:.3f}"
        if by_reward
        else f"with {highest:.1%} of the held-out problems solved"
    )
    if comparison.baseline.name in best:
        return f"No variant ends above {comparison.baseline.name}, the baseline, {solved}."
    variant = next(variant for variant in comparison.finished if variant.name == best[0])
    gap = highest - known_means[comparison.baseline.name]
    ahead = f"{gap:.3f}" if by_reward else f"{100 * gap:.1f} points"
    difference = against_baseline(comparison, variant, measure)
    spreads = {"problems": difference.over_problems, "seeds": difference.over_seeds}
    intervals = {
        name: answer.interval for name, answer in spreads.items() if answer is not None and answer.interval is not None
    }
    with_zero = [name for name, (low, high) in intervals.items() if low <= 0 <= high]
    if with_zero:
        said = f"which is within chance: 0 lies in its 95% interval over {' and its interval over '.join(with_zero)}"
    elif "seeds" not in intervals:
        several = difference.over_seeds is not None and difference.over_seeds.pairs > 1
        said = f"{'equally on each' if several else 'on one'} seed; other seeds may give another result"
    else:
        over = " and its interval over ".join(intervals)
        said = f"which is beyond chance: 0 lies outside its 95% interval over {over}"
    who = best[0] if len(best) == 1 else f"{', '.join(best[:-1])} and {best[-1]}"
    ends = "ends" if len(best) == 1 else "end"
    return f"{who} {ends} highest {solved}, {ahead} above {comparison.baseline.name}, {said}."


def comparison_measure(comparison: RecordedComparison) -> str:
    """What measures the runs: `reward` where any of them is not measured by its accuracy; one objective for all."""
    runs = [run for variant in comparison.finished for run in variant.runs.values()]
    by_reward = any(run.summary.get("measure") == "reward" for run in runs)
    return (
        "reward"
        if by_reward and all(is_number(run.results("after").get("reward")) for run in runs)
        else "greedy_accuracy"
    )


def summary(comparison: RecordedComparison) -> dict[str, Any]:
    """Returns every number of the page, as the plain values of summary.json."""
    return {
        "verdict": comparison_verdict(comparison),
        "measure": comparison_measure(comparison),
        "baseline": comparison.baseline.name,
        "seeds": comparison.seeds,
        "threshold": THRESHOLD,
        "claims": claims_summary(answer_claims(comparison)),
        "variants": {variant.name: _variant_summary(comparison, variant) for variant in comparison.variants},
    }


def _variant_summary(comparison: RecordedComparison, variant: Variant) -> dict[str, Any]:
    names = dict.fromkeys(name for metrics in variant.metrics.values() for name in metrics)
    metrics = {name: metric_by_seed(variant, name) for name in names}
    against = {name: against_baseline(comparison, variant, name) for name in ("greedy_accuracy", "pass_at_1", "reward")}
    return {
        "settings": variant.settings,
        "runs": {seed: run.directory.name for seed, run in variant.runs.items()},
        "figures": {
            name: {"mean": metric.mean, "interval": metric.interval, "by_seed": metric.by_seed}
            for name, metric in metrics.items()
            if metric.by_seed
        },
        "against_baseline": {name: asdict(gap) for name, gap in against.items() if variant is not comparison.baseline},
        "held_out": [
            asdict(point) | {"mean": fmean(point.accuracies), "solved": _over_seeds(point.solved)}
            for point in held_out_curve(variant)
        ],
        "seconds_by_part": time_parts(variant),
    }


def _over_seeds(values: Sequence[float]) -> dict[str, Any]:
    metric = MetricBySeed(dict(enumerate(values)))
    return {"mean": metric.mean, "interval": metric.interval}


def _curves(variant: Variant) -> dict[str, Any]:
    """Makes series and evaluations of a variant in the form of a run's: means, lowest and highest over seeds."""
    sums_by_step = {step: sums for step, sums in totals(variant).items() if step > 0}
    bands: dict[str, list[list[float | None]]] = {}  # mean, lowest and highest over the seeds, None without a value
    for name in CURVES:
        steps, by_seed = metric_curve(variant, name)
        values = dict(zip(steps, zip(*by_seed, strict=True), strict=True))
        if values:
            bands[name] = [
                [many(values[s]) if s in values else None for s in sums_by_step] for many in (fmean, min, max)
            ]
    series: dict[str, Any] = {
        "step": list(sums_by_step),
        "tokens": [tokens for tokens, _ in sums_by_step.values()],
        "seconds": [seconds for _, seconds in sums_by_step.values()],
    }
    for index, kind in enumerate(("columns", "low", "high")):
        series[kind] = {name: band[index] for name, band in bands.items()}
    evaluations = []
    for point in held_out_curve(variant):
        # A policy that solves all problems is drawn as if it failed half a problem: a logarithmic axis has no 0.
        unsolved = [max(1 - share, 0.5 / point.problems) for share in point.accuracies]
        evaluation = {
            "step": point.step,
            "greedy_accuracy": fmean(point.accuracies),
            "greedy_interval": [min(point.accuracies), max(point.accuracies)],
            "unsolved": fmean(unsolved),
            "unsolved_interval": [min(unsolved), max(unsolved)],
        }
        evaluations.append(evaluation)
    return {"series": series, "evaluations": evaluations}
