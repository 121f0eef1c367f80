"""Every page of the lab under axe-core, the rules that accessibility is usually tested with: no violation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
