"""Makes the table of metrics in docs/run_directory.md from src/grouprl/record/metrics.json.

    python docs/site/metric_table.py

writes it; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from grouprl.record.metrics import METRICS, Metric

PAGE = Path(__file__).parents[1] / "run_directory.md"
HEADS = ("key", "meaning", "formula", "unit", "TRL's name")


def with_table(page: str) -> str:
    """Replaces the table in the section on metrics.jsonl; metrics with one meaning share a row."""
    start = page.index(f"| {HEADS[0]} | {HEADS[1]} |", page.index("\n## metrics.jsonl\n"))
    rows = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    of_steps = [metric for metric in METRICS.values() if not metric.held_out]
    for meaning, members in groupby(of_steps, key=lambda metric: metric.meaning):
        rows.append("| " + " | ".join(_cells(meaning, list(members))) + " |")
    return page[:start] + "\n".join(rows) + page[page.index("\n\n", start) :]


def _cells(meaning: str, members: Sequence[Metric]) -> Iterator[str]:
    yield ", ".join(f"`{metric.name}`" for metric in members)
    yield meaning
    for column in ("formula", "unit", "trl"):
        values = [getattr(metric, column) for metric in members]
        # An unescaped vertical bar would end the cell.
        code = [f"`{value}`".replace("|", "\\|") if value and column != "unit" else value for value in values]
        yield ", ".join(dict.fromkeys(filter(None, code)))


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
