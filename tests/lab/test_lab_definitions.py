"""What the tables of the page hold: each metric and each value of an option; a new one fails here, not in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import grouprl.config.algorithm  # noqa: F401 (which imports all parts)
from grouprl.algorithms.option import Part, hints
from grouprl.lab.report.page import STATIC
from grouprl.record.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"
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


def test_every_section_is_of_some_metric_and_back_and_leads_to_a_page() -> None:
    assert set(SECTIONS) == {metric.section for metric in METRICS.values() if metric.section}
    assert [name for name, found in SECTIONS.items() if not (DOCS / found["page"]).exists()] == []


def test_every_metric_that_a_chart_names_is_defined() -> None:
    charts = [chart for section in json.loads((STATIC / "charts.json").read_text()) for chart in section["charts"]]
    keys = {key for chart in charts for key in chart.get("lines", {})}
    assert {"reward", "kl", "curriculum/seen", "judge/cost"} <= keys
    assert keys <= set(METRICS)


STAGES = json.loads((STATIC / "stages.json").read_text(encoding="utf-8"))
# The tables that the page reads, by option.
TABLES: dict[str, list[tuple[str, ...]]] = {
    "aggregate": [("loss", "weight")],
    "baseline": [("advantages", "baseline")],
    "scale": [("advantages", "scale")],
    "std": [("statistics", "std")],
    "credit": [("ratio", "credit")],
    "surrogate": [("ratio", name) for name in ("name", "equation", "title", "maximized", "why", "acts")],
    "ratio": [("ratio", "letter"), ("ratio", "happens")],
    "kl_estimator": [("kl", "estimate")],
    "kl_in": [("kl", "happens")],
}
# Those that the page has no table for: its code, or a note beside the group, was written for these values.
BRANCHES = {
    "reward_mix": {"sum_then_normalise", "normalise_then_sum"},
    "critic_kind": {"copy", "shared"},
    "correction_kind": {"truncate", "mask"},
    "correction_level": {"token", "sequence"},
    "distill_reads": {"auto", "solution", "prompt"},
    "distill_where": {"no_signal", "all"},
}


def parts(of: type[Part] = Part) -> Iterator[type[Part]]:
    for part in of.__subclasses__():
        if part.__module__.startswith("grouprl."):  # not those of other tests
            yield from (part, *parts(part))


def choices() -> dict[str, set[str]]:
    """The values of each option that has a list of them, over all parts."""
    found: dict[str, set[str]] = {}
    for part in parts():
        for name, hint in hints(part).items():
            for one in (hint, *get_args(hint)):
                if get_origin(one) is Literal:
                    found.setdefault(name, set()).update(get_args(one))
    return found


@pytest.mark.parametrize("name", sorted(choices()))
def test_the_page_has_every_value_of_an_option(name: str) -> None:
    values = choices()[name]
    if name in BRANCHES:
        assert values == BRANCHES[name], "look at the page: does it say the right thing of the new value?"
    for place in TABLES.get(name, []):
        table: Any = STAGES
        for key in place:
            table = table[key]
        assert values <= set(table), f"stages.json, {'.'.join(place)}"
    assert name in TABLES or name in BRANCHES
