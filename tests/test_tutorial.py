"""The tutorial: an executed notebook, whose cells run from the first to the last."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from source_tree import ROOT

CELLS = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> str:
    return "".join(
        "".join(output.get("text", output.get("data", {}).get("text/html", ""))) for output in cell["outputs"]
    )


def run(cells: list[dict[str, Any]]) -> dict[str, Any]:
    # Its functions go to the workers of the rewards by value, as those of a notebook do.
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        exec(compile(tree, f"cell {number}", "exec"), names)
    return names


def test_the_notebook_is_executed_without_an_error() -> None:
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert {output["output_type"] for cell in CODE for output in cell["outputs"]} <= {
        *("stream", "display_data", "execute_result")
    }
    training = next(cell for cell in CODE if "trainer.train()" in "".join(cell["source"]))
    assert len(training["outputs"]) == 1, "a run is one output"
    assert re.search(r"^ +24/24 ", shown(training), re.MULTILINE)
    assert any("<svg" in shown(cell) for cell in CODE), "a run is shown with its curves"
    assert "\x1b" not in json.dumps(CELLS)


def test_every_link_of_the_notebook_leads_somewhere() -> None:
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link.partition("#")[0]).exists()] == []


def test_the_cells_run_as_far_as_a_group_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    training = next(at for at, cell in enumerate(CODE) if "trainer.train()" in "".join(cell["source"]))
    names = run(CODE[:training])
    rewards = [outcome.total for outcome in names["before"].outcomes]
    # Standardized by the group's own mean and deviation, worked out here by hand.
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    assert deviation > 0, "the tutorial shows a group with signal"
    assert names["before"].advantages == pytest.approx([(reward - mean) / deviation for reward in rewards], abs=1e-4)


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(CODE)  # with the assertions of its cells
    assert names["longer"].directory == Path("runs/tutorial")
    assert len(names["longer"].metrics()) == 28
