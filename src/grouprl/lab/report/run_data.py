"""What the page of a run shows, as plain values: the lab answers with them, and report.html holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from grouprl.files import is_number, read_file, read_json
from grouprl.lab.report.notes import read_notes
from grouprl.lab.report.prompts import SharedBeginning
from grouprl.lab.report.recorded import read_config
from grouprl.record.layout import WRITTEN_BY_A_RUN, RunDirectory
from grouprl.record.queries import invalid_reasons
from grouprl.record.read import RecordedRun, measure_of, read_examples, read_json_lines, read_summary
from grouprl.trainer.verdict import verdict

Row = dict[str, Any]
SPARK_POINTS = 60
_SPARKS = ("reward", "accuracy", "completions/mean_length")
_AXES = ("step", "tokens", "seconds")


@dataclass(frozen=True)
class RunFiles:
    """The small files of a run, as they were read."""

    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    metrics: Sequence[Row]  # numbers and None, with the tokens and seconds of the run up to each step
    evaluations: Sequence[Row]
    forked: Mapping[str, Any]


def read_files(folder: Path) -> RunFiles:
    """The small files of a run directory.

    Raises:
        UserError: one of them is damaged.
    """
    run = RunDirectory(folder)
    return RunFiles(
        read_config(folder),
        read_summary(folder),
        list(totalled([], read_json_lines(run.metrics))),
        read_json_lines(run.evaluations),
        read_json(run.forked),
    )


def run_line(identifier: str, folder: Path, files: RunFiles) -> dict[str, Any]:
    """A run as a line of the list of runs."""
    config, summary = files.config, files.summary
    last: Row = files.metrics[-1] if files.metrics else {}
    before: Row = files.evaluations[0] if files.evaluations else {}
    after = summary.get("after") or {}
    forked = {name: files.forked.get(name) for name in ("from", "step")}
    return {
        **named(identifier, folder),
        "status": RunDirectory(folder).status(summary, config.get("steps")),
        "forked": forked if isinstance(forked["from"], str) and isinstance(forked["step"], int) else None,
        "step": last.get("step", 0),
        "steps": config.get("steps"),
        "algorithm": _part(config, "algorithm", "name"),
        "model": _part(config, "model", "path"),
        "task": _part(config, "task", "name"),
        "seed": _plain(config.get("seed")),
        "reward": last.get("reward"),
        "accuracy": last.get("accuracy"),
        "greedy_before": _number(before, "greedy_accuracy"),
        "greedy_after": _number(after, "greedy_accuracy"),
        "measure": measure_of(summary, files.evaluations),
        "reward_before": _number(before, "reward"),
        "reward_after": _number(after, "reward"),
        "tokens_per_second": last.get("tokens_per_second"),
        "seconds": _number({"train_seconds": last.get("seconds"), **summary}, "train_seconds"),
        **asdict(read_notes(folder)),
        "sparks": {name: thinned([row.get(name) for row in files.metrics], SPARK_POINTS) for name in _SPARKS},
    }


def named(identifier: str, folder: Path) -> dict[str, Any]:
    """What is known of a run whatever its files hold."""
    return {"id": identifier, "name": folder.resolve().name, "modified": changed(folder)}


def run_answer(identifier: str, folder: Path, files: RunFiles) -> dict[str, Any]:
    """A run as its page shows it, without the values of each step and without completions.

    Raises:
        UserError: examples.json is damaged.
    """
    recorded = RecordedRun(folder, "", tuple(files.metrics), tuple(files.evaluations), (), {}, files.summary)
    run = RunDirectory(folder)
    examples = read_examples(run.examples)
    shared = SharedBeginning.of([row.prompt for rows in examples.values() for row in rows])
    names = dict.fromkeys(name for row in files.metrics for name in row)
    page = RunDirectory(folder).report.name
    return {
        **run_line(identifier, folder, files),
        "verdict": verdict(recorded),
        "config": files.config,
        "config_yaml": (read_file(run.config) or b"").decode("utf-8", "replace"),
        "summary": files.summary,
        "evaluations": files.evaluations,
        "examples": {
            when: [asdict(row) | {"prompt": shared.own(row.prompt)} for row in rows] for when, rows in examples.items()
        },
        "checkpoints": [checkpoint.step for checkpoint in run.checkpoints()],
        "files": {name: what for name, what in WRITTEN_BY_A_RUN.items() if name != page and (folder / name).exists()},
        "metrics": [name for name in names if name not in _AXES],
        "warnings": warning_rows(folder),
    }


def warning_rows(folder: Path) -> list[dict[str, Any]]:
    """What went wrong in the steps of a run, as it was recorded.

    Raises:
        UserError: warnings.jsonl is damaged.
    """
    rows = read_json_lines(RunDirectory(folder).warnings)
    texts = ("kind", "metric", "sentence", "setting")
    return [{"step": row["step"], **{name: str(row.get(name, "")) for name in texts}} for row in rows]


def series_answer(rows: Sequence[Row]) -> dict[str, Any]:
    """What charts are drawn over, and every metric as a column: a value for each step, None where it has no number."""
    names = dict.fromkeys(name for row in rows for name in row if name not in _AXES)
    axes = {axis: [row[axis] for row in rows] for axis in _AXES}
    return {**axes, "columns": {name: [row.get(name) for row in rows] for name in names}}


def invalid_answer(folder: Path) -> dict[str, Any]:
    """The most frequent reasons why completions of a run could not be judged."""
    names = ("reason", "completions", "first_step", "last_step")
    return {"reasons": [dict(zip(names, row, strict=True)) for row in invalid_reasons(folder)]}


def totalled(before: Sequence[Row], rows: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """The rows, without what is no number, and with the tokens and seconds of the run up to each."""
    last = before[-1] if before else {"tokens": 0, "seconds": 0.0}
    plain = [{name: value if is_number(value) else None for name, value in row.items()} for row in rows]
    tokens = accumulate((row.get("completion_tokens") or 0 for row in plain), initial=last["tokens"])
    seconds = accumulate((row.get("time/total") or 0.0 for row in plain), initial=last["seconds"])
    next(tokens), next(seconds)
    for row, spent, took in zip(plain, tokens, seconds, strict=True):
        yield {**row, "tokens": spent, "seconds": took}


def thinned(values: Sequence[float | None], points: int) -> list[float | None]:
    """At most this many of the values, evenly spaced, the last among them."""
    if len(values) <= points:
        return list(values)
    last = len(values) - 1
    return [values[round(point * last / (points - 1))] for point in range(points)]


def changed(folder: Path) -> float:
    """When a run last wrote one of its small files, in seconds since 1970; 0 without any."""
    times, run = [], RunDirectory(folder)
    for path in (run.metrics, run.summary, run.config):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def _part(config: Mapping[str, Any], section: str, name: str) -> str | float | None:
    settings = config.get(section)
    return _plain(settings.get(name) if isinstance(settings, dict) else settings)


def _plain(value: Any) -> str | float | None:
    return value if isinstance(value, str | int | float) else None


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return value if is_number(value) else None
