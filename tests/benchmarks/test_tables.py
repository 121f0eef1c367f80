"""The tables of the docs that a script makes are what it makes of the results that lie beside it."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
# Tables of docs/evidence.md whose comparisons were made before results were kept: run them again with --keep.
NOT_KEPT = 6


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
    shown, kept = tables("comparison.md"), script.kept()
    for name, summary in kept.items():
        assert list(script.table(summary, costs=summary["costs"])) in shown, name
    assert len(shown) == len(kept) + NOT_KEPT
