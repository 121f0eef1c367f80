"""Reads the runs of a comparison and computes metrics: per run, per variant over seeds, against the baseline."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from grouprl.evaluation.paired import Difference, ProblemResults, mean_by_problem, paired_by_name
from grouprl.evaluation.statistics import mean_interval
from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedRun, read_run, read_summary
from grouprl.record.strict import is_number, read_json
from grouprl.types import UserError

COMPARISON_FILE = "comparison.json"
THRESHOLD = 0.9  # accuracy of the metrics "to 90 %"
WINDOW = 3  # steps over which sampled accuracy is averaged


@dataclass(frozen=True)
class Variant:
    """The finished runs of one variant, by seed."""

    name: str
    settings: tuple[str, ...]
    runs: Mapping[int, RecordedRun]


@dataclass(frozen=True)
class RecordedComparison:
    """The finished runs of a comparison. The first of `variants` is the baseline."""

    directory: Path
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]

    @property
    def baseline(self) -> Variant:
        """The variant that the others are compared with."""
        return self.variants[0]

    @property
    def finished(self) -> tuple[Variant, ...]:
        """The variants with at least one finished run."""
        return tuple(variant for variant in self.variants if variant.runs)


@dataclass(frozen=True)
class MetricBySeed:
    """One metric of a variant's runs, by seed; without the runs that lack it."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None when no run has the metric."""
        return fmean(self.by_seed.values()) if self.by_seed else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval over the seeds (run-to-run variation); None for fewer than two."""
        return mean_interval(list(self.by_seed.values())) if len(self.by_seed) > 1 else None


@dataclass(frozen=True)
class BaselineDifference:
    """The difference of a variant to the baseline in one metric, on the seeds that both have finished."""

    over_problems: Difference | None  # paired by problem, means over seeds: variation between problems
    over_seeds: Difference | None  # paired by seed: run-to-run variation


@dataclass(frozen=True)
class HeldOutEvaluation:
    """An evaluation during training, over the seeds of a variant."""

    step: int
    tokens: float  # completion tokens sampled so far, mean over seeds
    seconds: float  # of training so far, mean over seeds
    accuracies: tuple[float, ...]  # greedy accuracy of each seed
    problems: int  # number of problems in the evaluation


def run_folder(variant: str, seed: int) -> str:
    """Returns the folder name of one run inside the folder of its comparison.

    >>> run_folder("G=2", 0)
    'G-2-seed0'
    """
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', variant).lstrip('._-')}-seed{seed}"


def read_comparison(directory: Path) -> RecordedComparison:
    """Reads the finished runs of a comparison.

    Raises:
        UserError: `directory` has no comparison, or a file of a run is damaged.
    """
    given = read_json(directory / COMPARISON_FILE)
    if not given:
        raise UserError(
            f"{directory}: expected the folder of a comparison (one with a {COMPARISON_FILE}), found none; "
            "give the folder that `grouprl compare` wrote, such as runs/NAME"
        )
    refused = _refused(given)
    if refused is not None:
        raise UserError(f"{directory / COMPARISON_FILE}: expected {refused}: restore the file")
    seeds = tuple(given["seeds"])
    variants = tuple(
        Variant(name, tuple(settings), _finished_runs(directory, name, seeds))
        for name, settings in given["variants"].items()
    )
    first = given.get("baseline") or variants[0].name
    return RecordedComparison(directory, seeds, tuple(sorted(variants, key=lambda variant: variant.name != first)))


def _refused(given: Mapping[str, object]) -> str | None:
    """Describes what is wrong with a comparison file, as "EXPECTED, got GOT"; None when it is valid."""
    seeds, variants, baseline = given.get("seeds"), given.get("variants"), given.get("baseline")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        return f"`seeds`, a list of whole numbers, got {seeds!r:.60}"
    if not isinstance(variants, dict) or not variants:
        return f"`variants`, the settings of each by name, got {variants!r:.60}"
    for name, settings in variants.items():
        if not isinstance(settings, list) or not all(isinstance(setting, str) for setting in settings):
            return f"a list of settings for the variant {name!r:.60}, got {settings!r:.60}"
    if baseline is not None and baseline not in list(variants):
        return f"`baseline`, one of the variants, got {baseline!r:.60}"
    return None


def _finished_runs(directory: Path, variant: str, seeds: Sequence[int]) -> dict[int, RecordedRun]:
    folders = {seed: directory / run_folder(variant, seed) for seed in seeds}
    # Only a run that made all of its steps writes `after`.
    finished = {seed: path for seed, path in folders.items() if "after" in read_summary(path)}
    return {seed: read_run(path) for seed, path in finished.items()}


# Metrics of a run


def held_out_results(run: RecordedRun) -> ProblemResults | None:
    """Returns the results of each problem in the evaluation after the last step; None when they are not recorded."""
    rows = [row for row in run.held_out if row["step"] == run.summary.get("steps")]
    if not rows:
        return None
    row = rows[-1]  # a run that was killed in an evaluation has recorded it twice
    columns = [row.get(name) for name in ("problem_ids", "greedy", "correct")]
    lists: list[list[Any]] = [column for column in columns if isinstance(column, list)]
    if len(lists) < 3 or len({len(column) for column in lists}) > 1 or type(row.get("samples")) is not int:
        raise _damaged(run, row["step"])
    names, greedy, correct = lists
    if not all(isinstance(name, str) for name in names) or not all(map(is_number, (*greedy, *correct))):
        raise _damaged(run, row["step"])
    return ProblemResults(tuple(names), tuple(greedy), tuple(correct), row["samples"])


def _damaged(run: RecordedRun, step: int) -> UserError:
    path = RunDirectory(run.directory).held_out
    return UserError(f"{path}: step {step}: expected the results of each problem, got something else: restore the file")


def _after(name: str) -> Callable[[RecordedRun], float | None]:
    return lambda run: run.results("after").get(name)


def _summed(run: RecordedRun, name: str) -> dict[int, float]:
    """Returns step -> sum of a metric up to that step; 0 before the first step."""
    steps, values = run.column(name)
    return {0: 0.0, **dict(zip(steps, accumulate(values), strict=True))}


def _to_threshold(cost: Callable[[RecordedRun, int], float | None]) -> Callable[[RecordedRun], float | None]:
    def reached(run: RecordedRun) -> float | None:
        steps = [
            row["step"]
            for row in run.evaluations
            if is_number(share := row.get("greedy_accuracy")) and share >= THRESHOLD
        ]
        return cost(run, min(steps)) if steps else None

    return reached


def _sampled_to_threshold(cost: Callable[[RecordedRun, int], float | None]) -> Callable[[RecordedRun], float | None]:
    def reached(run: RecordedRun) -> float | None:
        steps, shares = run.column("accuracy")
        means = [fmean(shares[at : at + WINDOW]) for at in range(len(shares) - WINDOW + 1)]
        found = [steps[at + WINDOW - 1] for at, mean in enumerate(means) if mean >= THRESHOLD]
        return cost(run, found[0]) if found else None

    return reached


def _sampled_at_the_end(run: RecordedRun) -> float | None:
    _, shares = run.column("accuracy")
    return fmean(shares[-max(1, len(shares) // 10) :]) if shares else None


def _mean_of(name: str) -> Callable[[RecordedRun], float | None]:
    def mean(run: RecordedRun) -> float | None:
        _, values = run.column(name)
        return fmean(values) if values else None

    return mean


RUN_METRICS: Mapping[str, Callable[[RecordedRun], float | None]] = {
    "greedy_accuracy": _after("greedy_accuracy"),
    "sampled_accuracy": _sampled_at_the_end,
    "pass_at_1": _after("pass_at_1"),
    "pass_at_8": _after("pass_at_8"),
    "steps_to_90": _to_threshold(lambda run, step: step),
    "tokens_to_90": _to_threshold(lambda run, step: _summed(run, "completion_tokens").get(step)),
    "seconds_to_90": _to_threshold(lambda run, step: _summed(run, "time/total").get(step)),
    "sampled_steps_to_90": _sampled_to_threshold(lambda run, step: step),
    "sampled_tokens_to_90": _sampled_to_threshold(lambda run, step: _summed(run, "completion_tokens").get(step)),
    "sampled_seconds_to_90": _sampled_to_threshold(lambda run, step: _summed(run, "time/total").get(step)),
    "seconds_per_step": _mean_of("time/total"),
    "train_seconds": lambda run: run.summary.get("train_seconds"),
    "steps": lambda run: run.summary.get("steps"),
    "completion_tokens": lambda run: run.summary.get("completion_tokens"),
    "peak_rss_mib": lambda run: run.summary.get("peak_rss_mib"),
}


# Metrics of a variant


def metric_by_seed(variant: Variant, name: str) -> MetricBySeed:
    """Computes one of `RUN_METRICS` for each seed of a variant."""
    found = {seed: RUN_METRICS[name](run) for seed, run in variant.runs.items()}
    return MetricBySeed({seed: float(value) for seed, value in found.items() if is_number(value)})


def against_baseline(comparison: RecordedComparison, variant: Variant, metric: str) -> BaselineDifference:
    """Computes the difference of a variant to the baseline in `greedy_accuracy` or `pass_at_1`."""
    seeds = [seed for seed in variant.runs if seed in comparison.baseline.runs]
    sides = [_by_problem(side, seeds, metric) for side in (variant, comparison.baseline)]
    ours, theirs = (
        {str(seed): value for seed, value in metric_by_seed(side, metric).by_seed.items()}
        for side in (variant, comparison.baseline)
    )
    return BaselineDifference(paired_by_name(*sides), paired_by_name(ours, theirs))


def _by_problem(variant: Variant, seeds: Sequence[int], metric: str) -> dict[str, float]:
    found = [held_out_results(variant.runs[seed]) for seed in seeds]
    results = [result for result in found if result is not None]
    if len(results) < len(seeds):
        return {}
    greedy = metric == "greedy_accuracy"
    return mean_by_problem([result.greedy_by_problem if greedy else result.sampled_by_problem for result in results])


def held_out_curve(variant: Variant) -> tuple[HeldOutEvaluation, ...]:
    """Returns the evaluations of a variant, in order, at the steps at which every seed was evaluated.

    Empty for a task without a verifier.
    """
    judged = [
        {row["step"]: row for row in run.evaluations if "greedy_accuracy" in row} for run in variant.runs.values()
    ]
    tokens = [_summed(run, "completion_tokens") for run in variant.runs.values()]
    seconds = [_summed(run, "time/total") for run in variant.runs.values()]
    everywhere = [set(rows) for rows in judged] + [set(sums) for sums in (*tokens, *seconds)]
    shared = sorted(set.intersection(*everywhere)) if judged else []
    return tuple(
        HeldOutEvaluation(
            step,
            fmean(row[step] for row in tokens),
            fmean(row[step] for row in seconds),
            tuple(rows[step]["greedy_accuracy"] for rows in judged),
            min(rows[step]["problems"] for rows in judged),
        )
        for step in shared
    )


def metric_curve(variant: Variant, name: str) -> tuple[list[int], list[list[float]]]:
    """Returns the steps at which every seed has metric `name`, and its values there [seed][step]."""
    columns = [dict(zip(*run.column(name), strict=True)) for run in variant.runs.values()]
    steps = sorted(set.intersection(*(set(column) for column in columns))) if columns else []
    return steps, [[column[step] for step in steps] for column in columns]


def totals(variant: Variant) -> tuple[list[int], list[float], list[float]]:
    """Returns the steps that every seed has made, and the mean completion tokens and seconds up to each."""
    tokens = [_summed(run, "completion_tokens") for run in variant.runs.values()]
    seconds = [_summed(run, "time/total") for run in variant.runs.values()]
    steps = sorted(set.intersection(*(set(sums) for sums in (*tokens, *seconds))) - {0}) if variant.runs else []
    mean_tokens, mean_seconds = ([fmean(sums[step] for sums in kind) for step in steps] for kind in (tokens, seconds))
    return steps, mean_tokens, mean_seconds


def time_parts(variant: Variant) -> dict[str, float]:
    """Returns the mean seconds of a step by part, over the steps and seeds of a variant; "other" last."""
    splits = [run.time_split()[1] for run in variant.runs.values()]
    names = dict.fromkeys(name for split in splits for name in split if name != "other")
    return {
        name: fmean([fmean(split[name]) if split.get(name) else 0.0 for split in splits])
        for name in (*names, "other")
        if splits
    }
