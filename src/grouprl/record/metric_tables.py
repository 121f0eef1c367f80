"""Generates the page's definitions.json from the metrics in `metrics.py`.

    python -m grouprl.record.metric_tables

writes it in a checkout of the repository; a test compares the two.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from grouprl.record.metrics import HELD_OUT, METRICS, Metric

PACKAGE = Path(__file__).parents[1]
DEFINITIONS = PACKAGE / "lab" / "report" / "static" / "definitions.json"


def definitions_json() -> str:
    """Makes the page's definitions of all metrics, as JSON."""
    lines = [f"  {_json(metric.name)}: {_json(_definition(metric))}" for metric in (*METRICS, *HELD_OUT)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def plain(markdown: str) -> str:
    """Removes Markdown marks: a link becomes its text, and a link in parentheses is removed."""
    text = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", markdown)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


def _definition(metric: Metric) -> dict[str, str]:
    said = {"label": metric.label, "unit": metric.unit, "is": plain(metric.meaning), "worry": metric.worry}
    return said | ({"more": metric.section} if metric.section else {})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Writes the definitions."""
    DEFINITIONS.write_text(definitions_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
