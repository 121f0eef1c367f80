"""Generates the table of all metrics, which the site shows, and the page's definitions.json, from `metrics.py`.

    python -m grouprl.record.metric_tables [--write]

prints the table in Markdown; `--write` writes definitions.json, which a test compares.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from grouprl.record.metrics import HELD_OUT, METRICS, Metric

PACKAGE = Path(__file__).parents[1]
DEFINITIONS = PACKAGE / "lab" / "report" / "static" / "definitions.json"
_HEADS = ("key", "meaning", "formula", "unit", "TRL's name")


def definitions_json() -> str:
    """Makes the page's definitions of all metrics, as JSON."""
    lines = [f"  {_json(metric.name)}: {_json(_definition(metric))}" for metric in (*METRICS, *HELD_OUT)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def docs_table(metrics: Sequence[Metric] = METRICS) -> str:
    """Makes a table in Markdown; metrics with one meaning share a row."""
    rows = ["| " + " | ".join(_HEADS) + " |", "|" + "---|" * len(_HEADS)]
    for meaning, members in groupby(metrics, key=lambda metric: metric.meaning):
        rows.append("| " + " | ".join(_cells(meaning, list(members))) + " |")
    return "\n".join(rows)


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
    """Prints the table of both kinds of metrics; with --write it writes the page's definitions."""
    if "--write" in sys.argv:
        DEFINITIONS.write_text(definitions_json(), encoding="utf-8")
    print(docs_table((*METRICS, *HELD_OUT)))


if __name__ == "__main__":
    main()
