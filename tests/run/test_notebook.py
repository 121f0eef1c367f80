"""A run in a notebook: one output that is updated, a cell that is run twice, and how the notebook shows the run."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grouprl import Run, Trainer, UserError
from small_runs import LETTERS, ROWS, small_config, small_run


class Screen:
    """What a notebook shows of a cell: the outputs, each with its newest picture."""

    def __init__(self) -> None:
        self.outputs: list[str] = []
        self.updates = 0

    def display(self, shown: Any, *, display_id: bool) -> Screen:
        assert display_id
        self.outputs.append(shown._repr_html_())
        return self

    def update(self, shown: Any) -> None:
        self.updates += 1
        self.outputs[-1] = shown._repr_html_()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """The surroundings by which rich knows a notebook, and IPython's display of them."""
    shown, ipython, module = Screen(), ModuleType("IPython"), ModuleType("IPython.display")
    module.display = shown.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a kernel
    return shown


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_run(tiny, small_config(tmp_path_factory.mktemp("notebook"), steps=4))


def test_a_run_is_one_output_that_is_updated(tiny: Path, tmp_path: Path, screen: Screen, capsys: Any) -> None:
    small_run(tiny, small_config(tmp_path, steps=6))
    (output,) = screen.outputs
    text = html.unescape(re.sub("<[^>]*>", "", output))
    assert re.findall(r"^ +(\d)/6 ", text, re.MULTILINE) == list("123456")
    assert [line.partition(":")[0] for line in text.rstrip().splitlines()[-3:]] == ["Report", "Model", "Try"]
    assert "\x1b" not in text
    assert screen.updates > 6
    assert capsys.readouterr().out == ""


def test_a_cell_that_is_run_twice_takes_the_next_name_or_resumes(tiny: Path, tmp_path: Path, screen: Screen) -> None:
    config = small_config(tmp_path, steps=2)
    trainer = Trainer(tiny, ROWS, [LETTERS], config=config)
    runs = [small_run(tiny, config), small_run(tiny, config), trainer.train()]
    assert [run.directory.name for run in runs] == ["run", "run-2", "run-3"]
    assert f"{tmp_path}/run holds a run, so this run is {tmp_path}/run-2." in html.unescape(screen.outputs[1])
    assert [run.summary["seed"] for run in runs] == [0, 0, 0]
    longer = small_run(tiny, small_config(tmp_path, steps=3), resume=True)
    assert (longer.directory.name, len(longer.metrics())) == ("run", 3)


def test_a_script_does_not_take_another_name(trained: Run, tiny: Path) -> None:
    with pytest.raises(
        UserError, match=r"already holds a run .* \(in Python train\(resume=True\)\), or choose another"
    ):
        small_run(tiny, small_config(trained.directory.parent, steps=1))


def test_a_run_shows_its_verdict_two_curves_and_its_report(trained: Run) -> None:
    shown, rewards = trained._repr_html_(), trained.metrics().column("reward")
    assert f'href="{trained.directory}/report.html"' in shown
    assert "Mean reward" in shown
    curves = re.findall(r'points="([^"]*)"', shown)
    assert len(curves) == 2
    heights = [float(point.split(",")[1]) for point in curves[0].split()]
    # The picture's 90 pixels hold the range of the rewards, the largest on top.
    expected = [90 * (max(rewards) - reward) / (max(rewards) - min(rewards)) for reward in rewards]
    assert heights == pytest.approx(expected, abs=0.06)
    assert [point.split(",")[0] for point in curves[0].split()] == ["0.0", "100.0", "200.0", "300.0"]


def test_metrics_are_a_table(trained: Run) -> None:
    table = trained.metrics()
    rows = [json.loads(line) for line in (trained.directory / "metrics.jsonl").read_text().splitlines()]
    assert list(table) == rows
    assert table.column("reward") == [row["reward"] for row in rows]
    assert table[1:][0]["step"] == 2
    with pytest.raises(KeyError):
        table.column("rewrad")
    assert table._repr_html_().count("<tr>") == 1 + 4
    pandas = pytest.importorskip("pandas")
    assert pandas.DataFrame(table)["reward"].tolist() == table.column("reward")
