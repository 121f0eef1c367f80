"""Reads the runs of a comparison and computes metrics: per run, per variant over seeds, against the baseline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError

from grouprl.evaluation.paired import Difference, ProblemResults, mean_by_problem, paired_by_name
from grouprl.evaluation.statistics import mean_interval
from grouprl.files import is_number, read_json
from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedRun, read_run, read_summary
from grouprl.tools.compare.settings import Claim, Stage
from grouprl.types import UserError

COMPARISON_FILE = "comparison.json"
THRESHOLD = 0.9  # accuracy of the metrics "to 90 %"
_CLAIMS = TypeAdapter(dict[str, Claim])
_STAGES = TypeAdapter(dict[str, tuple[Stage, ...]])
WINDOW = 3  # steps over which sampled accuracy is averaged


@dataclass(frozen=True)
class Variant:
    """The finished runs of one variant, by seed."""

    name: str
    settings: tuple[str, ...]
    runs: Mapping[int, RecordedRun]

    @cached_property
    def metrics(self) -> Mapping[int, Mapping[str, Any]]:
        """The `run_metrics` of each run, by seed."""
        return {seed: run_metrics(run) for seed, run in self.runs.items()}


@dataclass(frozen=True)
class RecordedComparison:
    """The finished runs of a comparison. The first of `variants` is the baseline."""

    directory: Path
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]
    claims: Mapping[str, Claim] = field(default_factory=dict)

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
        """Student's 95 % interval over the seeds (run-to-run variation); None where fewer than two values differ."""
        return mean_interval(list(self.by_seed.values())) if len(set(self.by_seed.values())) > 1 else None


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
    solved: tuple[float, ...]  # pass@1 of each seed where completions were sampled, else greedy accuracy
    problems: int  # number of problems in the evaluation


def run_folder(variant: str, seed: int, stage: str = "") -> str:
    """Returns the folder name of one run, or of one stage of a variant, inside the folder of its comparison.

    >>> run_folder("G=2", 0), run_folder("cold start", 0, stage="1-sft")
    ('G-2-seed0', 'cold-start-seed0-1-sft')
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", variant).lstrip("._-")
    return f"{name}-seed{seed}{stage and '-'}{stage}"


def read_comparison(directory: Path) -> RecordedComparison:
    """Reads the finished runs of a comparison.

    Raises:
        UserError: `directory` has no comparison, or a file of a run is damaged.
    """
    contents = read_json(directory / COMPARISON_FILE)
    if not contents:
        raise UserError(
            f"{directory}: expected the folder of a comparison (one with a {COMPARISON_FILE}), found none; "
            "give the folder that `grouprl compare` wrote, such as runs/NAME"
        )
    refused = _refused(contents)
    if refused is not None:
        raise UserError(f"{directory / COMPARISON_FILE}: expected {refused}: restore the file")
    seeds = tuple(contents["seeds"])
    stages = _STAGES.validate_python(contents.get("stages", {}), strict=False)
    variants = [
        Variant(name, tuple(settings), _finished_runs(directory, name, seeds))
        for name, settings in contents["variants"].items()
    ]
    for name, own_stages in stages.items():
        commands = [
            (f"{n}-{verb}", changes) for n, stage in enumerate(own_stages, 1) for verb, changes in stage.items()
        ]
        trained = [stage for stage, _ in commands if stage.endswith("-train")]
        settings = tuple(" ".join((stage, *changes)) for stage, changes in commands)
        variants.append(Variant(name, settings, _finished_runs(directory, name, seeds, trained)))
    first = contents.get("baseline") or variants[0].name
    ordered = tuple(sorted(variants, key=lambda variant: variant.name != first))
    return RecordedComparison(directory, seeds, ordered, _CLAIMS.validate_python(contents.get("claims", {})))


def _refused(contents: Mapping[str, object]) -> str | None:
    """Describes what is wrong with a comparison file, as "EXPECTED, got GOT"; None when it is valid."""
    seeds, variants, baseline = contents.get("seeds"), contents.get("variants"), contents.get("baseline")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        return f"`seeds`, a list of whole numbers, got {seeds!r:.60}"
    if not isinstance(variants, dict) or not (variants or contents.get("stages")):
        return f"`variants`, the settings of each by name, got {variants!r:.60}"
    for name, settings in variants.items():
        if not isinstance(settings, list) or not all(isinstance(setting, str) for setting in settings):
            return f"a list of settings for the variant {name!r:.60}, got {settings!r:.60}"
    claims = contents.get("claims", {})
    try:
        names = {*variants, *_STAGES.validate_python(contents.get("stages", {}), strict=False)}
        unknown = {side for claim in _CLAIMS.validate_python(claims).values() for side in claim.variants} - names
    except (ValidationError, UserError) as error:
        return f"`claims` and `stages`, each as the recipe has it, got {error!s:.60}"
    if baseline is not None and baseline not in list(names):
        return f"`baseline`, one of the variants, got {baseline!r:.60}"
    return f"`claims` of the variants, got also {', '.join(sorted(unknown))[:60]}" if unknown else None


def _finished_runs(
    directory: Path, variant: str, seeds: Sequence[int], stages: Sequence[str] = ("",)
) -> dict[int, RecordedRun]:
    folders = {seed: [directory / run_folder(variant, seed, stage) for stage in stages] for seed in seeds}
    # Only a run that made all of its steps writes `after`.
    finished = {seed: paths for seed, paths in folders.items() if all("after" in read_summary(path) for path in paths)}
    return {seed: joined_run([read_run(path) for path in paths]) for seed, paths in finished.items()}


def joined_run(runs: Sequence[RecordedRun]) -> RecordedRun:
    """Joins the runs of a variant's stages into one: their steps are counted on, their cost is added up.

    A run with a learning rate of 0 only samples data for others, and is left out. An evaluation before the first step
    of a run stands at the last step of the run before it, and comes after its own.
    """
    runs = [*(run for run in runs[:-1] if any(row.get("learning_rate") != 0 for row in run.metrics)), runs[-1]]
    if len(runs) == 1:
        return runs[0]
    ends = list(accumulate((run.summary["steps"] for run in runs), initial=0))
    metrics, evaluations, held_out = (
        tuple({**row, "step": row["step"] + end} for rows, end in zip(parts, ends, strict=False) for row in rows)
        for parts in zip(*((run.metrics, run.evaluations, run.held_out) for run in runs), strict=True)
    )
    summed = {name: sum(run.summary[name] for run in runs) for name in ("steps", "completion_tokens", "train_seconds")}
    summary = {**runs[-1].summary, "before": runs[0].summary.get("before"), **summed}
    return replace(runs[-1], metrics=metrics, evaluations=evaluations, held_out=held_out, summary=summary)


# Metrics of a run


def held_out_results(run: RecordedRun) -> ProblemResults | None:
    """Returns the results of each problem in the evaluation after the last step; None when they are not recorded."""
    rows = [row for row in run.held_out if row["step"] == run.summary.get("steps")]
    if not rows:
        return None
    row = rows[-1]  # a run that was killed in an evaluation has recorded it twice
    results = ProblemResults.read(row)
    if results is None:
        raise UserError(
            f"{RunDirectory(run.directory).held_out}: step {row['step']}: expected the results of each problem, got "
            "something else: restore the file"
        )
    return results


def run_metrics(run: RecordedRun) -> dict[str, Any]:
    """Computes the metrics of a run by name; None for those that it lacks."""
    after = run.results("after")
    sampled_steps, shares = run.column("accuracy")
    _, times = run.column("time/total")
    tokens, seconds = summed(run, "completion_tokens"), summed(run, "time/total")
    metrics: dict[str, Any] = {
        "greedy_accuracy": after.get("greedy_accuracy"),
        "sampled_accuracy": fmean(shares[-max(1, len(shares) // 10) :]) if shares else None,
        "pass_at_1": after.get("pass_at_1"),
        "pass_at_8": after.get("pass_at_8"),
        "reward": after.get("reward"),
    }
    evaluated = [(row["step"], row.get("greedy_accuracy")) for row in run.evaluations]
    held_out_step = min((step for step, share in evaluated if is_number(share) and share >= THRESHOLD), default=None)
    # The last step of the first WINDOW steps whose mean accuracy reached the threshold.
    means = (fmean(shares[at : at + WINDOW]) for at in range(len(shares) - WINDOW + 1))
    ends = zip(sampled_steps[WINDOW - 1 :], means, strict=False)
    sampled_step = next((step for step, mean in ends if mean >= THRESHOLD), None)
    for kind, step in (("", held_out_step), ("sampled_", sampled_step)):
        metrics[f"{kind}steps_to_90"] = step
        metrics[f"{kind}tokens_to_90"] = None if step is None else tokens.get(step)
        metrics[f"{kind}seconds_to_90"] = None if step is None else seconds.get(step)
    metrics["seconds_per_step"] = fmean(times) if times else None
    return metrics | {
        name: run.summary.get(name) for name in ("train_seconds", "steps", "completion_tokens", "peak_rss_mib")
    }


def summed(run: RecordedRun, name: str) -> dict[int, float]:
    """Returns step -> sum of a metric up to that step; 0 before the first step."""
    steps, values = run.column(name)
    return {0: 0.0, **dict(zip(steps, accumulate(values), strict=True))}


def seconds_by_part(run: RecordedRun) -> dict[str, float]:
    """Returns the mean seconds of a step by part, longest first, "other" (the rest of time/total) last."""
    rows = [row for row in run.metrics if is_number(row.get("time/total"))]
    timed = dict.fromkeys(name for row in run.metrics for name in row if name.startswith("time/"))
    names = [name for name in timed if name != "time/total"]
    parts = {name.removeprefix("time/"): [row.get(name) or 0.0 for row in rows] for name in names}
    other = [max(0.0, row["time/total"] - sum(row.get(name) or 0.0 for name in names)) for row in rows]
    longest_first = sorted(parts.items(), key=lambda part: -sum(part[1]))
    return {part: fmean(seconds) if rows else 0.0 for part, seconds in (*longest_first, ("other", other))}


# Metrics of a variant


def metric_by_seed(variant: Variant, name: str) -> MetricBySeed:
    """Returns one of `run_metrics` for each seed of a variant."""
    values = {seed: metrics[name] for seed, metrics in variant.metrics.items()}
    return MetricBySeed({seed: float(value) for seed, value in values.items() if is_number(value)})


def against_baseline(comparison: RecordedComparison, variant: Variant, metric: str) -> BaselineDifference:
    """Computes the difference of a variant to the baseline in `greedy_accuracy`, `pass_at_1` or `reward`."""
    seeds = [seed for seed in variant.runs if seed in comparison.baseline.runs]
    sides = [_by_problem(side, seeds, metric) for side in (variant, comparison.baseline)]
    ours, theirs = (
        {str(seed): value for seed, value in metric_by_seed(side, metric).by_seed.items()}
        for side in (variant, comparison.baseline)
    )
    over_seeds = paired_by_name(ours, theirs)
    if over_seeds is not None and len({ours[seed] - theirs[seed] for seed in ours if seed in theirs}) == 1:
        over_seeds = replace(over_seeds, interval=None)  # equal differences do not know how runs vary
    return BaselineDifference(paired_by_name(*sides), over_seeds)


def _by_problem(variant: Variant, seeds: Sequence[int], metric: str) -> dict[str, float]:
    per_seed = [held_out_results(variant.runs[seed]) for seed in seeds]
    results = [result for result in per_seed if result is not None]
    if len(results) < len(seeds):
        return {}
    if metric == "reward":
        return mean_by_problem([result.reward_by_problem(metric) for result in results])
    greedy = metric == "greedy_accuracy"
    return mean_by_problem([result.greedy_by_problem if greedy else result.sampled_by_problem for result in results])


def totals(variant: Variant) -> dict[int, tuple[float, float]]:
    """Returns the mean completion tokens and seconds up to each step that every seed has made, from step 0."""
    sums = [(summed(run, "completion_tokens"), summed(run, "time/total")) for run in variant.runs.values()]
    steps = set.intersection(*(set(kind) for kinds in sums for kind in kinds)) if sums else ()
    return {
        step: (fmean(tokens[step] for tokens, _ in sums), fmean(seconds[step] for _, seconds in sums))
        for step in sorted(steps)
    }


def held_out_curve(variant: Variant) -> tuple[HeldOutEvaluation, ...]:
    """Returns the evaluations of a variant, in order, at the steps at which every seed was evaluated.

    Empty for a task without a verifier.
    """
    judged = [
        {row["step"]: row for row in run.evaluations if "greedy_accuracy" in row} for run in variant.runs.values()
    ]
    return tuple(
        HeldOutEvaluation(
            step,
            tokens,
            seconds,
            tuple(rows[step]["greedy_accuracy"] for rows in judged),
            tuple(rows[step].get("pass_at_1", rows[step]["greedy_accuracy"]) for rows in judged),
            min(rows[step]["problems"] for rows in judged),
        )
        for step, (tokens, seconds) in totals(variant).items()
        if all(step in rows for rows in judged)
    )


def metric_curve(variant: Variant, name: str) -> tuple[list[int], list[list[float]]]:
    """Returns the steps at which every seed has metric `name`, and its values there [seed][step]."""
    columns = [dict(zip(*run.column(name), strict=True)) for run in variant.runs.values()]
    steps = sorted(set.intersection(*(set(column) for column in columns))) if columns else []
    return steps, [[column[step] for step in steps] for column in columns]


def time_parts(variant: Variant) -> dict[str, float]:
    """Returns the mean seconds of a step by part, over the steps and seeds of a variant; "other" last."""
    splits = [seconds_by_part(run) for run in variant.runs.values()]
    names = dict.fromkeys(name for split in splits for name in split if name != "other")
    return {name: fmean(split.get(name, 0.0) for split in splits) for name in (*names, "other") if splits}
