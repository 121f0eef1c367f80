"""What the lab's charts say of a metric: each metric has a definition that can be read alone, and what is behind it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grouprl.lab import report
from grouprl.record.metric_tables import plain
from grouprl.record.metrics import HELD_OUT, METRICS

DOCS = Path(__file__).parents[2] / "docs"
STATIC = Path(report.__file__).parent / "static"
DEFINITIONS = json.loads((STATIC / "definitions.json").read_text(encoding="utf-8"))
SECTIONS = json.loads((STATIC / "sections.json").read_text(encoding="utf-8"))
UNITS = {"", "share", "s", "nats", "nats per token", "tokens", "tokens/s", "groups", "problems", "requests", "MiB"}


def test_cells_lose_their_marks_and_nothing_else() -> None:
    assert plain("share of `a` ([why](b.md#c)), [a judge](d.md)'s too") == "share of a, a judge's too"


def test_every_metric_of_the_table_is_defined_and_nothing_else() -> None:
    assert {metric.name for metric in (*METRICS, *HELD_OUT)} == set(DEFINITIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_makes_sentences_that_stand_alone(name: str) -> None:
    found = DEFINITIONS[name]
    assert set(found) - {"more"} == {"label", "unit", "is", "worry"}
    assert found["unit"] in UNITS
    assert re.fullmatch(r"[A-Zp].*[^.;]", found["label"])
    # It begins with what the metric is, and not in the middle of another sentence.
    assert re.match(r"[a-z1][\w'-]* ", found["is"])
    assert found["is"].split()[0] not in {"of", "with", "for", "and", "that", "those", "these"}
    assert re.fullmatch(r"(when|above) .*[^.;]", found["worry"])  # after "Worry"


def test_what_is_behind_a_metric_is_told_on_a_page_that_is_there() -> None:
    assert set(SECTIONS) == {found["more"] for found in DEFINITIONS.values() if "more" in found}
    assert [name for name, found in SECTIONS.items() if not (DOCS / found["page"]).exists()] == []
    assert all(found["title"] and found["text"] for found in SECTIONS.values())


def test_every_metric_that_a_chart_names_is_defined() -> None:
    charts = [chart for section in json.loads((STATIC / "charts.json").read_text()) for chart in section["charts"]]
    keys = {key for chart in charts for key in chart.get("lines", {})}
    assert {"reward", "kl", "curriculum/seen", "judge/cost"} <= keys
    assert keys <= {metric.name for metric in METRICS}
