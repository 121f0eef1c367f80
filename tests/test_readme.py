"""The Python of the README and of docs/start.md is run as it stands, and so are the cells of the tutorial."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from source_tree import ROOT

PAGES = (ROOT / "README.md", ROOT / "docs" / "start.md")
BLOCKS = [
    pytest.param(block, page, id=f"{page.name} {number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL), 1
    )
]


def test_there_is_python_on_each_page() -> None:
    shown = {block.values[1] for block in BLOCKS}
    assert shown == set(PAGES), "expected an example in a ```python block on each: show how Trainer is used"


@pytest.mark.usefixtures("with_page")
@pytest.mark.parametrize(("block", "page"), BLOCKS)
def test_a_block_runs_in_an_empty_folder(
    block: str, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(page), "exec"), {"__name__": "__main__"})
    assert "Traceback" not in capsys.readouterr().err
    if "Trainer(" in block:
        runs = [run for run in (tmp_path / "runs").iterdir() if run.name != "models"]
        assert [(run / "report.html").is_file() for run in runs] == [True]


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


def test_the_notebook_for_colab_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = json.loads((ROOT / "docs" / "colab.ipynb").read_text(encoding="utf-8"))["cells"]
    install, *code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert install.startswith("%pip install ")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(code):
        exec(compile(source, f"cell {number}", "exec"), names)
    assert names["run"].summary["steps"] == 3
    assert names["right"]([[{"content": "\\boxed{7}"}], [{"content": "7"}]], ["7", "7"]) == [1.0, 0.0]


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(CODE)  # with the assertions of its cells
    assert names["longer"].directory == Path("runs/tutorial")
    assert len(names["longer"].metrics()) == 28
