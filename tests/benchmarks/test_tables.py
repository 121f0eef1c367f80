"""What scripts of the benchmarks make of their results and of the shapes that they build; the docs show it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest
import torch

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
    assert script.claims() in shown, "run python benchmarks/comparison_tables.py and paste the table of claims"


@pytest.mark.parametrize("script", ["comparison_tables"], indirect=True)
def test_p_values_of_the_claims_are_corrected_over_the_whole_table(script: ModuleType) -> None:
    kept = script.kept_claims()
    rows = [row for claim in kept.values() for row in claim["measured"]]
    # Student's t with four degrees of freedom, in closed form; Holm's method by its definition.
    angles = [math.atan(abs(row["difference"]["mean"]) / row["difference"]["error"] / 2) for row in rows]
    p_values = [1 - math.sin(angle) * (1 + math.cos(angle) ** 2 / 2) for angle in angles]
    for row, own in zip(rows, p_values, strict=True):
        steps = [p * sum(other >= p for other in p_values) for p in p_values if p <= own]
        assert (row["p_value"], row["p_in_table"]) == pytest.approx((own, min(1.0, max(steps))), abs=1e-9)
        assert row["difference"]["seeds"] == 5
        assert not row["by_seed"] or fmean(row["by_seed"]) == pytest.approx(row["difference"]["mean"])
    for claim in kept.values():
        is_significant = all(row["p_in_table"] < 0.05 for row in claim["measured"])
        assert claim["holds_in_table"] == (claim["verdict"] == "holds" and is_significant)
    assert [row["p_in_table"] for row in kept["four_stages"]["measured"]] == pytest.approx([0.808], abs=1e-3)


@pytest.mark.parametrize("script", ["shapes"], indirect=True)
@pytest.mark.parametrize(("vocabulary", "layers"), [(512, 2), (20_000, 2), (512, 30)])
@torch.no_grad()
def test_completions_end_as_often_with_every_vocabulary(script: ModuleType, vocabulary: int, layers: int) -> None:
    shape = replace(script.TINY, vocabulary=vocabulary, layers=layers, hidden=64, prompt_tokens=40, problems=4)
    logits = script.build(shape)(torch.tensor(script.prompts(shape))).logits
    ends = logits.softmax(-1)[..., script.END].mean()
    assert float(ends) == pytest.approx(3 / 512, rel=0.25)


@pytest.mark.parametrize("script", ["shapes"], indirect=True)
def test_prompts_share_what_was_asked_for(script: ModuleType) -> None:
    asked = script.prompts(replace(script.REAL["smollm2-135m"], prompt_tokens=175, shared_tokens=140))
    assert {len(prompt) for prompt in asked} == {175}
    assert len({prompt[:140] for prompt in asked}) == 1
    assert len({prompt[140:] for prompt in asked}) == len(asked) == 8
    assert max(map(max, asked)) > 40_000


@pytest.mark.parametrize("script", ["shapes"], indirect=True)
@pytest.mark.parametrize(
    ("name", "millions"), [("smollm2-135m", 134.5), ("smollm2-360m", 361.8), ("qwen2.5-0.5b", 494.0)]
)
def test_the_shapes_are_as_large_as_the_models(
    monkeypatch: pytest.MonkeyPatch, script: ModuleType, name: str, millions: float
) -> None:
    with torch.device("meta"):
        monkeypatch.setattr(script, "_end_often", lambda model: None)
        model = script.build(script.REAL[name])
    assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("script", ["floor"], indirect=True)
def test_a_floor_counts_shared_tokens_once_and_the_vocabulary(
    monkeypatch: pytest.MonkeyPatch, script: ModuleType
) -> None:
    monkeypatch.setattr(script, "matmul_rate", lambda *_: 1.0)
    monkeypatch.setattr(script, "bandwidth", lambda _: 1e30)
    shape = script.Shape(4, 2, 2, 1, 8, 3, 2, prompt_tokens=10, max_tokens=5, shared_tokens=6, vocabulary=50)
    # A layer: queries and output 4 x 4, keys and values 4 x 2, three of 4 x 8. Prompts: 6 + 3 x 4 tokens.
    layers, head, prompts = 2 * (2 * 16 + 2 * 8 + 3 * 32), 4 * 50, 18
    floors = script.step_floors(shape, [3] * 6, "float32", reference=True)
    learning = 6 * (layers * (prompts + 6 * 2) + head * 6 * 3)
    assert floors == {
        "generation": 2 * layers * prompts + 2 * (layers + head) * 6 * 2,
        "reference": learning / 3,
        "learn": learning,
    }


@pytest.mark.parametrize("script", ["speed"], indirect=True)
def test_a_part_of_a_section_takes_the_place_of_its_old_rows(script: ModuleType) -> None:
    def section(rows: dict[str, int], **measured: int) -> dict[str, object]:
        return {"rows": [{"name": name, "ours": ours} for name, ours in rows.items()], "measured": measured}

    kept = {"machine": {"cores": 2}, "sections": {"floor": section({"f": 0})}}
    first = script.added(kept, "real", section({"a": 1, "b": 2}, one=1))
    both = script.added(first, "real", section({"b": 3, "c": 4}, two=2))
    assert both == {
        "machine": {"cores": 2},
        "sections": {"floor": section({"f": 0}), "real": section({"a": 1, "b": 3, "c": 4}, one=1, two=2)},
    }
