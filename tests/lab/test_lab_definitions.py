"""The definitions of metrics make sentences on the page, and every chart has its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

from grouprl.lab import report
from grouprl.record.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"
STATIC = Path(report.__file__).parent / "static"
SECTIONS = json.loads((STATIC / "sections.json").read_text(encoding="utf-8"))
UNITS = {"", "share", "s", "nats", "nats per token", "tokens", "tokens/s", "groups", "problems", "requests", "MiB"}


def test_definitions_make_sentences_that_stand_alone() -> None:
    for found in METRICS.values():
        assert found.unit in UNITS
        assert re.fullmatch(r"[A-Zp].*[^.;]", found.label)
        # It begins with what the metric is, and not in the middle of another sentence.
        assert re.match(r"[a-z1][\w'-]* ", found.meaning), found
        assert found.meaning.split()[0] not in {"of", "with", "for", "and", "that", "those", "these"}
        assert re.fullmatch(r"(when|above) .*[^.;]", found.worry), found  # after "Worry"


def test_every_section_is_of_some_metric_and_back() -> None:
    assert set(SECTIONS) == {metric.section for metric in METRICS.values() if metric.section}


def test_what_is_behind_a_metric_is_told_on_a_page_that_is_there() -> None:
    assert [name for name, found in SECTIONS.items() if not (DOCS / found["page"]).exists()] == []


def test_every_metric_that_a_chart_names_is_defined() -> None:
    charts = [chart for section in json.loads((STATIC / "charts.json").read_text()) for chart in section["charts"]]
    keys = {key for chart in charts for key in chart.get("lines", {})}
    assert {"reward", "kl", "curriculum/seen", "judge/cost"} <= keys
    assert keys <= set(METRICS)
