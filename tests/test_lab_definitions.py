"""What the lab's charts say of a metric is what docs/run_directory.md says of it, word for word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grouprl.algorithms.named import NAMED
from grouprl.lab import web

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "run_directory.md").read_text(encoding="utf-8")
STATIC = Path(web.__file__).parent / "static"
DEFINITIONS = json.loads((STATIC / "definitions.json").read_text(encoding="utf-8"))
UNITS = {"", "share", "s", "nats", "nats per token", "tokens", "tokens/s", "groups", "problems", "requests", "MiB"}


def table(heading: str) -> dict[str, str]:
    """The meaning of each key of the first table with keys under a heading, as its cell has it."""
    section = PAGE[PAGE.index(f"\n{heading}\n") :]
    rows = section[section.index("| key | meaning |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.fullmatch(r"\| (.+?) \| (.+) \|", row) for row in rows]
    assert all(cells), f"{heading}: expected rows of two cells"
    return {key: cell[2] for cell in cells if cell for key in re.findall(r"`([^`]+)`", cell[1])}


def plain(cell: str) -> str:
    """A cell without marks: code as text, a link as its text, a link in brackets of its own as nothing."""
    cell = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", cell)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "")


METRICS = table("## metrics.jsonl")
MEASURES = table("## evaluations.jsonl and summary.json")


def anchors(page: Path) -> set[str]:
    """What a link can lead to on a page: its headings as GitHub names them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def test_cells_lose_their_marks_and_nothing_else() -> None:
    assert plain("share of `a` ([why](b.md#c)), [a judge](d.md)'s too") == "share of a, a judge's too"
    assert METRICS["learning_rate"] == "of this update"
    assert METRICS["frac_hopeless"] == METRICS["frac_solved"] != METRICS["frac_unverified"]
    assert anchors(ROOT / "docs" / "algorithms.md") >= {"dr_grpo", "4-options", "kl-estimators-and-their-gradients"}


def test_every_metric_of_the_table_is_defined_and_nothing_else() -> None:
    assert set(METRICS) | {"greedy_accuracy", "pass_at_1", "pass_at_8"} == set(DEFINITIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_is_the_cell_of_the_table(name: str) -> None:
    assert DEFINITIONS[name]["is"] == plain(METRICS.get(name) or MEASURES[name])


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_makes_one_sentence(name: str) -> None:
    found = DEFINITIONS[name]
    assert set(found) == {"label", "unit", "is", "worry", "link"}
    assert found["unit"] in UNITS
    assert re.fullmatch(r"[A-Zp].*[^.;]", found["label"])
    # "...; worry when it falls": it goes on where `is` ends.
    assert re.fullmatch(r"(when|above) .*[^.;]", found["worry"])


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_link_leads_to_a_heading_of_a_page(name: str) -> None:
    page, _, heading = DEFINITIONS[name]["link"].partition("#")
    assert page.startswith("docs/")
    assert not heading or heading in anchors(ROOT / page)


def test_the_metrics_to_watch_of_every_algorithm_are_defined() -> None:
    """docs/algorithms.md names columns of metrics.jsonl under *Watch*: each has its chart's sentence here."""
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    watched = re.findall(r"^\*\*Watch\*\*: (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert len(watched) == len(NAMED) - 3, "expected a list for each algorithm but the three presets of libraries"
    names = {name for part in watched for name in re.findall(r"`([^`]+)`", part)}
    patterns = {name: re.sub(r"rewards/(?!soft_overlong)\w+/", "rewards/NAME/", name) for name in names}
    assert {"reward", "value_explained_variance", "rewards/equation_steps/mean"} <= names
    assert [name for name, pattern in patterns.items() if pattern not in DEFINITIONS] == []


def test_every_metric_that_a_chart_names_is_defined() -> None:
    plan = (STATIC / "parts" / "run" / "plan.js").read_text(encoding="utf-8")
    named = set(re.findall(r"lines: \{([^}]+)\}", plan))
    keys = {key for part in named for key in re.findall(r'"?([a-z_]+(?:/[a-z_]+)?)"?: (?:"|null)', part)}
    assert {"reward", "kl", "curriculum/seen", "judge/cost"} <= keys
    assert keys <= set(METRICS)
