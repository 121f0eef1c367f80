"""The comparisons of a folder of runs, as the lab answers them."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from comparisons import PROBLEMS, comparison, ones, record, with_and_without_critic
from grouprl.lab.server import create_app
from grouprl.record.write import RunRecord
from grouprl.tools.compare.read import read_comparison
from grouprl.tools.compare.report import comparison_answer
from grouprl.types import StepRecord
from lab_browser import Lab, needs_chromium, opened


def test_a_comparison_has_its_page(tmp_path: Path) -> None:
    folder = comparison(tmp_path / "clips", ["a", "b"], [0])
    for name in ("a", "b"):
        record(folder / f"{name}-seed0", [ones(1), ones(2), ones(3)])
    answer = TestClient(create_app(tmp_path)).get("/api/comparisons/clips").json()
    assert answer["verdict"] == comparison_answer(read_comparison(folder))["verdict"]
    assert [one["name"] for one in answer["variants"]] == ["a", "b"]


def test_a_comparison_that_is_not_there_or_leads_elsewhere_is_told(tmp_path: Path) -> None:
    for name in ("outside", "root"):
        (tmp_path / name).mkdir()
    with_and_without_critic(tmp_path / "outside" / "mine")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "outside" / "mine")
    client = TestClient(create_app(tmp_path / "root"))
    for name in ("linked", "none", ".."):
        assert client.get(f"/api/comparisons/{name}").status_code == 404


def own(folder: Path, before: float, after: float) -> None:
    """A run that its own reward measures: the mean of four held-out problems, half below it and half above."""
    sides = [
        {"reward": mean, "reward_interval": [mean - 0.05, mean + 0.05], "rewards/mine/mean": mean, "problems": 4}
        for mean in (before, after)
    ]
    with RunRecord.create(folder, "seed: 0\n") as run:
        for step in (1, 2):
            run.step(StepRecord(step, {"reward": step / 2, "completion_tokens": 9, "time/total": 1.0}, (), (), ()))
        for step, side in zip((0, 2), sides, strict=True):
            spread = [side["reward"] + gap for gap in (-0.1, 0.1, -0.1, 0.1)]
            run.held_out(step, {"problem_ids": PROBLEMS[:4], "greedy": [], "correct": [], "samples": 1,
                                "rewards": {"reward": spread}})  # fmt: skip
            run.evaluation(step, side)
        run.summary({"before": sides[0], "after": sides[1], "measure": "reward", "steps": 2, "train_seconds": 2.0})


@pytest.mark.slow
@needs_chromium
def test_runs_without_a_verifier_are_shown_by_their_reward(shared_lab: Lab) -> None:
    own(shared_lab.root / "own", 0.1, 0.8)
    folder = comparison(shared_lab.root / "rewards", ["low", "high"], [0])
    own(folder / "low-seed0", 0.1, 0.5)
    own(folder / "high-seed0", 0.1, 0.75)
    with opened(shared_lab) as lab:
        page = lab.page
        lab.go("/")
        page.get_by_role("row", name="own").get_by_text("reward 0.100 \u2192 0.800").wait_for()
        lab.go("/runs/own")
        page.get_by_text("reward 0.100 \u2192 0.800").wait_for()
        page.get_by_role("region", name="Held-out reward", exact=True).scroll_into_view_if_needed()
        page.get_by_text("0.8 (0.750 to 0.850)").first.wait_for()
        row = page.get_by_role("region", name="Before and after").get_by_role("row", name="mean reward")
        assert [cell.split() for cell in row.get_by_role("cell").all_inner_texts()] == [
            ["0.100", "0.050", "to", "0.150"], ["0.800", "0.750", "to", "0.850"], ["+0.700"],
        ]  # fmt: skip
        last = page.get_by_role("region", name="Evaluations").get_by_role("row").last
        assert last.inner_text().split()[:5] == ["2", "0.800", "0.750", "to", "0.850"]
        lab.go("/compare/own")
        page.get_by_role("region", name="Held-out reward", exact=True).wait_for()
        cells = page.get_by_role("region", name="Results").get_by_role("row").last.get_by_role("cell").all_inner_texts()
        assert cells[2:6] == ["mean reward", "0.100", "0.800", "0.750 to 0.850"]
        lab.go("/comparison/rewards")
        table = page.get_by_role("region", name="Held-out reward", exact=True).first
        texts = table.get_by_role("row", name="high").inner_text()
        assert "0.750" in texts
        assert "+0.250" in texts
        assert "points" not in texts
