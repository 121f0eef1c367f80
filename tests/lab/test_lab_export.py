"""The explaining pages as a folder: its numbers are those of `grouprl.algorithms`, and it opens without a server."""

from __future__ import annotations

import json
import re
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from grouprl.algorithms import group_advantages, group_statistics, policy_loss
from grouprl.cli.verbs import app
from grouprl.lab.export import presets
from lab_browser import needs_chromium, opened

EXAMPLE = Path(sys.modules["grouprl"].__path__[0]) / "lab" / "example.json"
CURVE = re.compile(r"explain/objective\?advantage=(.+)&surrogate=clip&clip_low=0.2&clip_high=0.2")
HELD = re.compile(r'<script type="application/json" id="held">(.*?)</script>')


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the command, which says where it is."""
    folder = tmp_path_factory.mktemp("explainer") / "new" / "site"
    done = CliRunner().invoke(app, ["lab", "--export-explainer", str(folder)])
    assert done.stdout.split() == ["Explainer:", str(folder / "index.html")]
    return folder / "index.html"


@pytest.fixture(scope="module")
def answers(exported: Path) -> dict[str, Any]:
    found = HELD.search(exported.read_text(encoding="utf-8"))
    assert found
    answers: dict[str, Any] = json.loads(found[1])["answers"]
    return answers


@pytest.mark.parametrize("rewards", presets().values(), ids=list(presets()))
def test_the_baked_numbers_are_those_of_the_algorithms(answers: dict[str, Any], rewards: list[float]) -> None:
    """The advantages bit by bit, in both pages, and the objective of each at some ratios."""
    listed = ",".join(f"{reward:g}" for reward in rewards)
    right = group_advantages(torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.long)).tolist()
    four = answers[f"explain/advantages?rewards={listed}&algorithms=grpo,dr_grpo,rloo,reinforce"]
    assert four["algorithms"]["grpo"]["advantages"] == right
    for walk in (answers[f"explain/group?rewards={listed}"], answers[f"explain/group?rewards={listed}&algorithm=grpo"]):
        assert walk["stages"]["advantages"]["completions"] == right
    curves = {float(found[1]): answers[key] for key in answers if (found := CURVE.fullmatch(key))}
    for advantage in set(right) - {0.0}:
        curve = curves[advantage]
        ratios = torch.tensor(curve["ratio"], dtype=torch.float64)[1:, None]
        for ratio, objective in zip(ratios[::50], curve["objective"][1::50], strict=True):
            old, weight = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1)
            loss, _ = policy_loss(ratio.log()[None], old, torch.tensor([advantage]), weight)
            assert objective == pytest.approx(-loss.item(), rel=1e-6)


def test_the_recorded_group_teaches_and_has_the_numbers_of_the_algorithms(answers: dict[str, Any]) -> None:
    """Three of its eight completions are right: the mean is 7 / 8, the deviation sqrt(15) / 8."""
    stages = answers["explain/group?run=demo&step=1"]["stages"]
    rewards = [one["reward"] for one in stages["rewards"]["completions"]]
    assert sorted(rewards) == [0.5] * 5 + [1.5] * 3
    texts, solved = [one["text"] for one in stages["completions"]], stages["prompt"]["columns"]["answer"].split()[-1]
    assert [f"\\boxed{{{solved}}}" in text for text in texts] == [reward > 1 for reward in rewards]
    found = group_statistics(torch.tensor(rewards, dtype=torch.float64), torch.zeros(8, dtype=torch.long))
    mean, deviation = float(found.baseline_N[0]), float(found.divisor_N[0]) - 1e-6
    assert (mean, deviation) == (pytest.approx(7 / 8), pytest.approx(15**0.5 / 8))
    shown = stages["statistics"]["compared"]
    assert (shown["mean"], shown["deviation"]) == (pytest.approx(mean), pytest.approx(deviation))
    right = group_advantages(torch.tensor(rewards), torch.zeros(8, dtype=torch.long)).tolist()
    assert stages["advantages"]["completions"] == pytest.approx(right, abs=1e-6)
    for curve in set(stages["advantages"]["completions"]):
        assert any(key.startswith(f"explain/objective?advantage={curve}&surrogate=clip&") for key in answers)
    assert EXAMPLE.stat().st_size < 40_000


def test_a_stage_shows_the_lines_that_compute_it(answers: dict[str, Any]) -> None:
    code = answers["explain/code"]
    assert set(code) == set(answers["static/stages.json"])
    source = Path(sys.modules["grouprl"].__path__[0]).parent
    for one in code.values():
        lines = (source / one["file"]).read_text(encoding="utf-8").splitlines(keepends=True)
        assert "".join(lines[one["line"] - 1 :]).startswith(one["text"])
    assert code["advantages"]["name"] == "group_advantages"


def test_the_measured_numbers_of_the_side_by_side_page_are_those_of_the_docs(answers: dict[str, Any]) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text(encoding="utf-8")
    found = re.findall(r"\d[\d,.]*(?= and| MiB)", " ".join(answers["static/ppo_grpo.json"]["why"]))
    assert set(found) == {"18.1", "31.7", "793", "816", "1,161", "1,211"}
    assert all(number in docs for number in found)


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize(
    ("names", "algorithms"),
    [
        pytest.param(["Partial rewards"], [""], id="one"),
        pytest.param(list(presets()), ["", "gspo", "sapo", "verl"], id="all"),
    ],
)
def test_the_folder_opens_without_a_server_and_asks_for_nothing(
    exported: Path, names: list[str], algorithms: list[str]
) -> None:
    with opened(exported) as browser:
        page = browser.page
        for name, algorithm in product(names, algorithms):
            listed = ",".join(f"{reward:g}" for reward in presets()[name])
            browser.go(f"/step?rewards={listed}{algorithm and '&algorithm='}{algorithm}&stage=update")
            page.locator("#stage-update .bars").wait_for()
            page.locator("#stage-ratio .read b").first.wait_for()
            assert set(page.locator(".page .error").all_inner_texts()) == {""}
        browser.go("/group")
        page.get_by_role("button", name="Partial rewards").click()
        page.get_by_text("0.9375").first.wait_for()
        assert page.locator("input[type=range]").first.is_disabled()  # nothing computes other rewards here
        browser.go("/ppo")
        page.get_by_text("held throughout").wait_for()
        side = page.get_by_role("region", name="PPO and GRPO side by side").inner_text()
        assert all(row in side for row in ("models in memory", "completions per prompt", "type of reward", "used in"))
        assert page.locator(".flow img").evaluate_all("all => all.every((one) => one.naturalWidth > 0)")
        browser.watched.assert_quiet()


@pytest.mark.slow
@needs_chromium
def test_the_file_opens_with_the_recorded_group_and_then_typed_rewards(exported: Path) -> None:
    with opened(exported) as browser:
        page = browser.page
        assert "GRPO trains a language model without a critic" in page.locator(".lead").inner_text()
        links = page.locator(".page a").evaluate_all("all => all.map((one) => one.href)")
        assert links == ["https://arxiv.org/abs/2402.03300", "https://github.com/grouprl/grouprl"]
        assert page.locator("#stage-prompt .quoted").first.is_visible()
        assert page.locator("#stage-completions .tries li:visible").count() == 8
        assert page.locator("#stage-rewards tbody tr:visible").count() == 8
        assert (page.evaluate("scrollY"), page.locator(".stage:visible").count()) == (0, 3)
        assert not page.get_by_role("button", name="Partial rewards").is_visible()
        for _ in range(6):
            page.locator(".next button:visible").click()
        assert page.locator("#stage-update .bars").first.is_visible()
        assert "0.875" in page.locator("#stage-statistics").inner_text()
        page.get_by_text("Or an example of typed rewards").click()
        page.get_by_role("button", name="Partial rewards").click()
        page.get_by_text("A group of 8 typed rewards").wait_for()
        page.get_by_role("button", name="Show the recorded group").click()
        page.get_by_text("Step 1 of run demo").wait_for()
        assert set(page.locator(".page .error").all_inner_texts()) == {""}
        browser.watched.assert_quiet()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = CliRunner().invoke(app, ["lab", "--export-explainer", str(tmp_path / "file")])
    assert "expected a folder for index.html" in str(refused.exception)
