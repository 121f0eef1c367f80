"""The screen of `grouprl check-reward`: totals, means of each reward, facts, warnings, verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.tools.check_reward.findings import KindScores, RewardCheck, Status
from grouprl.types import counted

_COLORS: dict[Status, str] = {"ok": "green", "tied": "yellow", "beaten": "bold red", "no verdict": "yellow"}
_EXAMPLE = 100  # characters shown of a completion
_SENTENCE = 160  # characters shown of a reason
_WIDE = 1000  # columns; wide enough to measure a table without wrapping


def show(console: Console, checked: RewardCheck) -> None:
    """Prints all findings; two or three rewards fit a terminal of 80 columns."""
    kinds = sorted(checked.kinds, key=_place)
    terms = {facts.name: f"{facts.weight:g} {facts.name}" for facts in checked.rewards}
    steps = [terms.pop(facts.name) for facts in checked.rewards if facts.per_step]
    beside = f"; steps: {' + '.join(steps)}" if steps else ""
    title = f"{checked.task}, {counted(checked.problems, 'problem')}: {' + '.join(terms.values())}{beside}"
    console.print(Text(title, style="bold"))
    facts_table = _table("reward", "smallest", "largest", "same twice", "failures")
    for facts in checked.rewards:
        same_twice, failures = "yes" if facts.repeats == "yes" else "no", str(sum(facts.failures.values()))
        facts_table.add_row(Text(facts.name), _number(facts.smallest), _number(facts.largest), same_twice, failures)
    totals: list[dict[str, str]] = []
    means: list[dict[str, str]] = []
    for scores in kinds:
        total = astuple(scores.total) if scores.total else (None,) * 4
        cells = {
            **dict(zip(("mean", "median", "min", "max"), map(_number, total), strict=True)),
            "invalid": f"{scores.invalid}/{scores.completions}" if scores.invalid else "0",
            "ms": _number(scores.milliseconds),
            "slowest": _number(scores.slowest_milliseconds),
        }
        totals.append(cells)
        correct = "-" if scores.correct is None else f"{scores.correct:.0%}"
        means.append({name: _number(mean) for name, mean in scores.components.items()} | {"correct": correct})
    tables = [_by_kind(kinds, [left | right for left, right in zip(totals, means, strict=True)])]
    if Console(width=_WIDE).measure(tables[0]).maximum > console.width:
        tables = [_by_kind(kinds, totals), _by_kind(kinds, means)]
    for table in (*tables, facts_table):
        console.print("", table, "", sep="\n")
    for scores in kinds:
        if scores.invalid:
            console.print(Text(f"{scores.kind.name}, {scores.invalid} invalid: {_cut(scores.reason, _SENTENCE)}"))
    for needs in dict.fromkeys(checked.left_out.values()):
        left_out = ", ".join(name for name, needed in checked.left_out.items() if needed == needs)
        console.print(Text(f"Skipped without {needs}: {left_out}"))
    for warning in checked.warnings:
        console.print(Text.assemble(("Warning: ", "yellow"), warning))
    console.print(Text(checked.verdict.text, style=_COLORS[checked.verdict.status]))
    for scores in kinds:
        if scores.kind.name == checked.verdict.best_trick and checked.verdict.status != "ok":
            console.print(Text(f"For example: {_cut(repr(scores.example), _EXAMPLE)}"))


def _place(scores: KindScores) -> tuple[bool, float]:
    """The sort key of a kind: tricks come last, the best of them first."""
    mean = scores.total.mean if scores.total else -math.inf
    return scores.kind.trick, -mean if scores.kind.trick else 0.0


def _by_kind(kinds: Sequence[KindScores], rows: Sequence[Mapping[str, str]]) -> Table:
    """Makes a table with one row for each kind, tricks last; `rows` are the cells of each kind by heading."""
    table = _table("", *rows[0])
    for heading, trick in (("should score", False), ("tricks", True)):
        table.add_row(Text(heading, style="dim"))
        for scores, cells in zip(kinds, rows, strict=True):
            if scores.kind.trick is trick:
                table.add_row(Text(f"  {scores.kind.name}"), *cells.values())
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(Text(heading), justify="right", overflow="fold")
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 10_000 else f"{value:.3g}"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
