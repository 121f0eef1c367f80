"""Generates the table in docs/run_directory.md and the page's definitions.json from the metrics in `metrics.py`.

    python -m grouprl.record.metric_tables

writes both in a checkout of the repository; a test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from grouprl.record.metrics import HELD_OUT, METRICS, Metric

PACKAGE = Path(__file__).parents[1]
DOCS, DEFINITIONS = Path("docs") / "run_directory.md", PACKAGE / "lab" / "report" / "static" / "definitions.json"
_HEADS = ("key", "meaning", "formula", "unit", "TRL's name")


def definitions_json() -> str:
    """Makes the page's definitions of all metrics, as JSON."""
    lines = [f"  {_json(metric.name)}: {_json(_definition(metric))}" for metric in (*METRICS, *HELD_OUT)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def docs_table(metrics: Sequence[Metric] = METRICS) -> str:
    """Makes the docs' table in Markdown; metrics with one meaning share a row."""
    rows = ["| " + " | ".join(_HEADS) + " |", "|" + "---|" * len(_HEADS)]
    for meaning, members in groupby(metrics, key=lambda metric: metric.meaning):
        rows.append("| " + " | ".join(_cells(meaning, list(members))) + " |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """Replaces the table in the section on metrics.jsonl of docs/run_directory.md.

    Raises:
        ValueError: the section has no table.
    """
    start = page.index(f"| {_HEADS[0]} | {_HEADS[1]} |", page.index("\n## metrics.jsonl\n"))
    return page[:start] + docs_table() + page[page.index("\n\n", start) :]


def plain(markdown: str) -> str:
    """Removes Markdown marks: a link becomes its text, and a link in parentheses is removed."""
    text = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", markdown)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


def _definition(metric: Metric) -> dict[str, str]:
    said = {"label": metric.label, "unit": metric.unit, "is": plain(metric.meaning), "worry": metric.worry}
    return said | ({"more": metric.section} if metric.section else {})


def _cells(meaning: str, members: Sequence[Metric]) -> Iterator[str]:
    yield ", ".join(f"`{metric.name}`" for metric in members)
    yield meaning
    for column in ("formula", "unit", "trl"):
        values = [getattr(metric, column) for metric in members]
        code = column != "unit"
        # An unescaped vertical bar would end the cell.
        shown = [f"`{value}`".replace("|", "\\|") if code and value else value for value in values]
        yield ", ".join(dict.fromkeys(filter(None, shown)))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Writes both files, from the root of the repository."""
    DEFINITIONS.write_text(definitions_json(), encoding="utf-8")
    DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
