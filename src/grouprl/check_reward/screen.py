"""The screen of `grouprl check-reward`: totals, means of each reward, facts, warnings, verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.check_reward.findings import KindScores, RewardCheck, RewardFacts, Status

_COLOURS: dict[Status, str] = {"ok": "green", "tied": "yellow", "beaten": "bold red", "no verdict": "yellow"}
_EXAMPLE = 100  # characters shown of a completion
_SENTENCE = 160  # characters shown of a reason
_WIDE = 1000  # columns; wide enough to measure a table without wrapping

_Columns = dict[str, Callable[[KindScores], str]]


def show(console: Console, checked: RewardCheck) -> None:
    """Prints all findings; two or three rewards fit a terminal of 80 columns."""
    kinds = sorted(checked.kinds, key=lambda kind: (kind.trick, kind.trick and -_mean(kind)))
    console.print(Text(_title(checked), style="bold"))
    names = [facts.name for facts in checked.rewards]
    for table in (*_tables(kinds, names, console.width), _facts(checked.rewards)):
        console.print("", table, "", sep="\n")
    for kind in kinds:
        if kind.invalid:
            console.print(Text(f"{kind.name}, {kind.invalid} invalid: {_cut(kind.reason, _SENTENCE)}"))
    for needs in dict.fromkeys(checked.left_out.values()):
        left_out = ", ".join(name for name, needed in checked.left_out.items() if needed == needs)
        console.print(Text(f"Left out without {needs}: {left_out}"))
    for warning in checked.warnings:
        console.print(Text.assemble(("Warning: ", "yellow"), warning))
    console.print(Text(checked.verdict.text, style=_COLOURS[checked.verdict.status]))
    best = {kind.name: kind for kind in kinds}.get(checked.verdict.best_trick or "")
    if best is not None and checked.verdict.status != "ok":
        console.print(Text(f"For example: {_cut(repr(best.example), _EXAMPLE)}"))


def _title(checked: RewardCheck) -> str:
    terms = {facts.name: f"{facts.weight:g} {facts.name}" for facts in checked.rewards}
    steps = [terms.pop(facts.name) for facts in checked.rewards if facts.per_step]
    beside = f"; steps: {' + '.join(steps)}" if steps else ""
    problems = "1 problem" if checked.problems == 1 else f"{checked.problems} problems"
    return f"{checked.task}, {problems}: {' + '.join(terms.values())}{beside}"


def _tables(kinds: Sequence[KindScores], rewards: Sequence[str], width: int) -> list[Table]:
    """Makes the tables of totals and of each reward's means, joined into one if the width allows."""
    totals: _Columns = {
        "mean": lambda kind: _number(kind.mean),
        "median": lambda kind: _number(kind.median),
        "min": lambda kind: _number(kind.smallest),
        "max": lambda kind: _number(kind.largest),
        "invalid": lambda kind: f"{kind.invalid}/{kind.completions}" if kind.invalid else "0",
        "ms": lambda kind: _number(kind.milliseconds),
        "slowest": lambda kind: _number(kind.slowest_milliseconds),
    }
    means: _Columns = {name: partial(_component, name) for name in rewards}
    means["correct"] = lambda kind: "-" if kind.correct is None else f"{kind.correct:.0%}"
    together = _by_kind(kinds, totals | means)
    if Console(width=_WIDE).measure(together).maximum <= width:
        return [together]
    return [_by_kind(kinds, totals), _by_kind(kinds, means)]


def _by_kind(kinds: Sequence[KindScores], columns: _Columns) -> Table:
    """Makes a table with one row for each kind, tricks last."""
    table = _table("", *columns)
    for heading, trick in (("should score", False), ("tricks", True)):
        table.add_row(Text(heading, style="dim"))
        for kind in kinds:
            if kind.trick is trick:
                table.add_row(Text(f"  {kind.name}"), *(cell(kind) for cell in columns.values()))
    return table


def _component(name: str, kind: KindScores) -> str:
    return _number(kind.components[name])


def _facts(rewards: Sequence[RewardFacts]) -> Table:
    table = _table("reward", "smallest", "largest", "same twice", "failures")
    for facts in rewards:
        failures = sum(facts.failures.values())
        table.add_row(
            Text(facts.name),
            _number(facts.smallest),
            _number(facts.largest),
            "yes" if facts.repeats == "yes" else "no",
            f"{failures}",
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(Text(heading), justify="right", overflow="fold")
    return table


def _mean(kind: KindScores) -> float:
    return float("-inf") if kind.mean is None else kind.mean


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 10_000 else f"{value:.3g}"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
