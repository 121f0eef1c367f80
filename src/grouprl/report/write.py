"""Turns a run directory into one self-contained page, report.html: no scripts, no outside requests, text as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from grouprl.record.files import atomic_write_text
from grouprl.record.layout import WRITTEN_BY_A_RUN, RunDirectory
from grouprl.record.read import Example, RecordedRun, Row, interval_name, read_run
from grouprl.record.rollouts import invalid_reasons
from grouprl.report.pages import page, picture
from grouprl.report.words import counted, duration

MEASURES = {
    "greedy_accuracy": "Greedy accuracy",
    "pass_at_1": "pass@1",
    "pass_at_8": "pass@8",
    "worked_share": "Worked solutions",
    "unverified_share": "The verifier failed",
}


@dataclass(frozen=True)
class Comparison:
    """A row of the before/after table as text, with 95% intervals; "–" where there is no number."""

    label: str
    before: str
    before_interval: str
    after: str
    after_interval: str
    change: str


@dataclass(frozen=True)
class TimePart:
    """What a part of a step takes: mean seconds, and its share of the step in [0, 1]."""

    name: str
    seconds: float
    share: float


def write_report(run_directory: Path) -> Path:
    """Draws plots/ and writes report.html from what the run directory holds; gives the path of the page.

    Works for interrupted runs: what is missing is left out.

    Raises:
        UserError: when `run_directory` holds no run, or a file of it is damaged.
    """
    # These bring in matplotlib, which nothing else needs.
    from grouprl.report.drawing import draw_plots
    from grouprl.report.plots import PLOTS

    run = read_run(run_directory)
    drawn = draw_plots(PLOTS, run, RunDirectory(run_directory).plots)
    pictures = {plot.name: picture(plot.title, plot.caption, path) for plot, path in drawn}
    time_picture = pictures.pop("time", None)
    comparisons = _comparisons(run)
    text = page("report.html.j2").render(
        title=run_directory.resolve().name,
        subtitle=_subtitle(run.summary),
        verdict=verdict(run),
        comparisons=comparisons,
        intervals=any(row.before_interval or row.after_interval for row in comparisons),
        problems=counted({**run.results("before"), **run.results("after")}.get("problems", 0), "held-out problem"),
        pictures=list(pictures.values()),
        time_picture=time_picture,
        examples=_pairs(run.examples),
        time_parts=_time_parts(run),
        config=run.config,
        invalid=invalid_reasons(run_directory),
        facts=_facts(run.summary),
        files=[(name, what) for name, what in WRITTEN_BY_A_RUN.items() if (run_directory / name).exists()],
    )
    path = RunDirectory(run_directory).report
    atomic_write_text(path, text)
    return path


def verdict(run: RecordedRun) -> str:
    """What came of the run, in one sentence."""
    before, after = run.results("before"), run.results("after")
    if "greedy_accuracy" in before and "greedy_accuracy" in after:
        return (
            f"Greedy accuracy {_from_to(before['greedy_accuracy'], after['greedy_accuracy'], '.1%')} "
            f"on {counted(after['problems'], 'held-out problem')} in {_training_time(run)}."
        )
    (_, accuracy), (_, reward) = run.column("accuracy"), run.column("reward")
    if not accuracy and not reward:
        return "Nothing to judge yet: no step with a reward is recorded."
    said = f"mean reward {_tenths(reward, '.2f')}"
    if accuracy:
        said = f"{_tenths(accuracy, '.1%')} of the sampled completions correct"
    if after and not accuracy:
        return f"{said.capitalize()} over {counted(len(run.metrics), 'step')} in {_training_time(run)}."
    return f"Unfinished at step {run.metrics[-1]['step']}: {said}, from the first steps to the last."


def _training_time(run: RecordedRun) -> str:
    return f"{duration(run.summary['train_seconds'])} of training"


def _tenths(values: Sequence[float], form: str) -> str:
    tenth = max(1, len(values) // 10)
    return _from_to(fmean(values[:tenth]), fmean(values[-tenth:]), form)


def _from_to(start: float, end: float, form: str) -> str:
    return f"{start:{form}}\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}{end:{form}}"


def _comparisons(run: RecordedRun) -> list[Comparison]:
    before, after = run.results("before"), run.results("after")
    found = {**before, **after}
    traits = {name: name.removesuffix("_share").capitalize() for name in found if name.endswith("_share")}
    labels = MEASURES | {name: label for name, label in traits.items() if name not in MEASURES}
    shares = [_comparison(label, name, before, after) for name, label in labels.items() if name in found]
    tokens = [f"{row['mean_length']:.1f}" if "mean_length" in row else "–" for row in (before, after)]
    both = "mean_length" in before and "mean_length" in after
    change = f"{after['mean_length'] - before['mean_length']:+.1f}" if both else ""
    length = Comparison("Mean length (tokens)", tokens[0], "", tokens[1], "", change)
    return [*shares, length] if shares or "mean_length" in found else []


def _comparison(label: str, name: str, before: Row, after: Row) -> Comparison:
    change = f"{100 * (after[name] - before[name]):+.1f} points" if name in before and name in after else ""
    return Comparison(label, *_share_and_interval(before, name), *_share_and_interval(after, name), change)


def _share_and_interval(row: Row, name: str) -> tuple[str, str]:
    if name not in row:
        return "–", ""
    interval = row.get(interval_name(name))
    bounds = "" if interval is None else f"{100 * max(0.0, interval[0]):.1f}–{min(1.0, interval[1]):.1%}"
    return f"{row[name]:.1%}", bounds


def _pairs(examples: Mapping[str, tuple[Example, ...]]) -> list[tuple[Example, list[tuple[str, Example | None]]]]:
    by_id = {when: {row.problem_id: row for row in rows} for when, rows in examples.items()}
    problems = {row.problem_id: row for rows in examples.values() for row in rows}
    return [
        (row, [(when, by_id.get(when, {}).get(problem_id)) for when in ("before", "after")])
        for problem_id, row in problems.items()
    ]


def _time_parts(run: RecordedRun) -> list[TimePart]:
    steps, parts = run.time_split()
    means = {name: fmean(values) for name, values in parts.items()} if steps else {}
    whole = sum(means.values()) or 1.0
    return [TimePart(name, seconds, seconds / whole) for name, seconds in means.items()]


def _subtitle(summary: Row) -> str:
    names = ("algorithm", "model", "task")
    return " · ".join(f"{name} {summary[name]}" for name in names if name in summary)


def _facts(summary: Row) -> list[tuple[str, str]]:
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "train_seconds": ("training", duration),
        "total_seconds": ("whole run", duration),
        "steps": ("steps", "{:,}".format),
        "seed": ("seed", str),
        "completion_tokens": ("completion tokens", "{:,}".format),
        "peak_rss_mib": ("peak memory", "{:,.0f} MiB".format),
    }
    numbers = [(label, form(summary[name])) for name, (label, form) in shown.items() if name in summary]
    return [*numbers, *((name, str(value)) for name, value in summary.get("machine", {}).items())]
