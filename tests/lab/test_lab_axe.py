"""Every page of the lab under axe-core, the rules that accessibility is usually tested with: no violation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.lab.report.write import write_data_page
from lab_browser import Lab, Opened, needs_chromium
from lab_runs import FULL_CONFIG, Made, make_run
from recorded_episodes import record_episodes

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(120)]

axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
RULES = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
RUN = "/runs/axe"
READ = ["/", RUN, f"{RUN}/groups", f"{RUN}/groups/1/0", "/compare/axe", "/group", "/ppo"]
READ += ["/step?rewards=1,0,0,1&stage=update", "/runs/talk/groups/1/0?c=1"]


@pytest.fixture(scope="module", autouse=True)
def run(shared_lab: Lab) -> None:
    mixed = Made([1.0, 0.0, None], advantages=[0.5774, -1.7321, 0.0], correct=[True, False, None])
    make_run(shared_lab.root / "axe", [mixed], [mixed], config=FULL_CONFIG)
    record_episodes(shared_lab.root / "talk")


def violations(page: Any) -> list[tuple[str, str]]:
    page.evaluate(f"{RULES}\n;0")
    # A label has to have the words that are seen, too: axe-core calls that rule an experiment.
    rules = "{'label-content-name-mismatch': {enabled: true}}"
    found = page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], rules: {rules}}})")["violations"]
    return [(one["id"], node["html"][:200]) for one in found for node in one["nodes"]]


def assert_none(browser: Opened) -> None:
    for theme in ("light", "dark"):
        browser.page.emulate_media(color_scheme=theme)
        assert violations(browser.page) == [], theme


@pytest.mark.parametrize("address", READ)
def test_no_violation(browser: Opened, address: str) -> None:
    browser.go(address)
    for _ in range(3):  # as it opens, everything unfolded, and what is inside another
        browser.page.wait_for_timeout(400)  # what is asked for afterwards
        assert_none(browser)
        browser.page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")


@pytest.mark.parametrize("button", ["Start a run", "Resume axe", "Notes on axe"])
def test_no_violation_in_a_dialog(browser: Opened, button: str) -> None:
    browser.go("/")
    browser.page.get_by_role("button", name=button, exact=True).click()
    dialog = browser.page.get_by_role("dialog")
    for folded in dialog.locator("summary").all():
        folded.click()
    assert_none(browser)
    dialog.get_by_role("button", name="Close").click()


def test_a_violation_would_be_found(browser: Opened) -> None:
    browser.go("/")
    browser.page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    assert [rule for rule, _ in violations(browser.page)] == ["label"]


def test_a_check_of_data_is_one_file_without_violations(browser: Opened, tmp_path: Path) -> None:
    """The text of a problem is text, whatever it says; the group size of the run is named."""
    hostile = "<img src=x onerror='window.hostile = 1'>"
    problem = {
        "samples": 8,
        "correct": 3,
        "interval": (0.1, 0.7),
        "pass_rate": 0.37,
        "signal": 0.9,
        "mean_tokens": 12.5,
        "question": hostile,
    }
    unjudged = problem | {"correct": None, "pass_rate": None, "question": "How many?"}
    group = {"interval": (0.4, 0.6), "is_unbiased": True, "tokens": 40.0, "seconds": 1.0}
    answer = {
        "task": "list", "model": "abacus", "train_problems": 9, "samples": 8, "group_size": 8, "max_tokens": 16,
        "band": (0.1, 0.9), "problems": [problem, unjudged], "pass_rate": 0.37, "pass_interval": (0.2, 0.5),
        "truncated": 0.0, "tokens_per_second": 100.0, "advice": ["It fits."], "histogram": {"never": 1, "to 50 %": 1},
        "groups": [{"group_size": 8, "signal": 0.5} | group,
                   {"group_size": 16, "signal": 0.0} | group | {"is_unbiased": False, "tokens": None, "seconds": None}],
    }  # fmt: skip
    write_data_page(tmp_path / "some data.html", answer)
    for width in (1200, 390):
        browser.page.set_viewport_size({"width": width, "height": 800})
        browser.page.goto((tmp_path / "some data.html").as_uri())
        browser.page.wait_for_selector("text=8, as in the run")
        words = browser.page.inner_text("main")
        for text in (
            "Pass rate 37.0% (20.0 to 50.0); 1 problem between 10% and 90%.",
            "~0.0%",
            "3 of 8 (10.0 to 70.0)",
            hostile,
        ):
            assert text in words
        assert browser.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert_none(browser)
    assert browser.page.evaluate("window.hostile") is None
    assert (browser.watched.complaints, browser.watched.dialogs) == ([], [])
