"""The definitions of metrics make sentences on the page, and every chart has its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grouprl.lab import report
from grouprl.record.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "run_directory.md").read_text(encoding="utf-8")
STATIC = Path(report.__file__).parent / "static"
SECTIONS = json.loads((STATIC / "sections.json").read_text(encoding="utf-8"))
UNITS = {"", "share", "s", "nats", "nats per token", "tokens", "tokens/s", "groups", "problems", "requests", "MiB"}


def table(heading: str) -> dict[str, str]:
    """The meaning of each key of the first table with keys under a heading, as its cell has it."""
    section = PAGE[PAGE.index(f"\n{heading}\n") :]
    rows = section[section.index("| key | meaning |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.fullmatch(r"\| (.+?) \| (.+) \|", row) for row in rows]
    assert all(cells), f"{heading}: expected rows of two cells"
    return {key: cell[2] for cell in cells if cell for key in re.findall(r"`([^`]+)`", cell[1])}


MEASURES = table("## evaluations.jsonl and summary.json")


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].held_out])
def test_a_measure_is_the_cell_of_its_table(name: str) -> None:
    assert METRICS[name].meaning == MEASURES[name.removeprefix("eval/")]


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


def test_every_metric_that_a_chart_names_is_defined() -> None:
    charts = [chart for section in json.loads((STATIC / "charts.json").read_text()) for chart in section["charts"]]
    keys = {key for chart in charts for key in chart.get("lines", {})}
    assert {"reward", "kl", "curriculum/seen", "judge/cost"} <= keys
    assert keys <= set(METRICS)
