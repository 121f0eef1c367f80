"""The tables of the docs that a script makes are what it makes of the results that lie beside it."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module(request.param)


def tables(page: str) -> list[list[str]]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [found.splitlines() for found in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)]


@pytest.mark.parametrize("script", ["speed_tables"], indirect=True)
def test_performance_shows_what_was_measured(script: ModuleType) -> None:
    assert tables("performance.md") == list(script.tables()), "run python benchmarks/speed_tables.py --write"


@pytest.mark.parametrize("script", ["demo_figures"], indirect=True)
@pytest.mark.parametrize("place", ["README.md", "docs/start.md", "src/grouprl/recipes/demo.yaml", "docs/models.md"])
def test_the_demo_has_the_same_figures_everywhere(script: ModuleType, place: str) -> None:
    assert list(script.PLACES) == ["README.md", "docs/start.md", "src/grouprl/recipes/demo.yaml", "docs/models.md"]
    written = script.written(place, json.loads(script.RESULTS.read_text(encoding="utf-8")))
    shown = (ROOT / place).read_text(encoding="utf-8")
    assert shown == written, "run python benchmarks/demo_figures.py --write"


@pytest.mark.parametrize("script", ["comparison_tables"], indirect=True)
def test_comparison_shows_what_was_compared(script: ModuleType) -> None:
    shown, kept = tables("evidence.md"), script.kept()
    for name, summary in kept.items():
        assert list(script.table(summary, costs=summary["costs"])) in shown, name


def test_evidence_shows_the_comparison_of_the_family() -> None:
    """It was made before summaries were kept: its numbers without the intervals."""
    found = json.loads((ROOT / "benchmarks" / "results" / "comparison_family.json").read_text(encoding="utf-8"))
    assert found["command"] in (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    (rows,) = [table for table in tables("evidence.md") if "| peak MiB |" in table[0]]
    table = {row.split(" | ")[0].strip("| "): [cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]}
    assert list(table) == [variant["name"] for variant in found["variants"]]
    for variant in found["variants"]:
        _, greedy, _, _, last, seeds, steps, tokens, seconds, per_step, peak = table[variant["name"]]
        mean = {name: one["mean"] for name, one in variant["figures"].items()}
        assert (f"{100 * mean['greedy_accuracy']:.1f} %", f"{100 * mean['sampled_accuracy']:.1f} %") == (greedy, last)
        assert ", ".join(f"{100 * seed:.1f}" for seed in variant["figures"]["sampled_accuracy"]["by_seed"]) == seeds
        assert (f"{mean['sampled_steps_to_90']:.1f}", f"{mean['sampled_tokens_to_90']:,.0f}") == (steps, tokens)
        assert (f"{mean['sampled_seconds_to_90']:.1f}", f"{mean['seconds_per_step']:.2f}") == (seconds, per_step)
        assert f"{mean['peak_rss_mib']:,.0f}" == peak
