"""The lab as its users meet it: `grouprl lab`, a real browser, a run that trains while it is looked at."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.record.layout import RunDirectory
from hostile_run import LONGEST, TEXTS, make_hostile_run
from lab_browser import Lab, Opened, needs_chromium

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(240)]

QUICK = """model.threads=1
rollout.scoring.workers=1
rollout.problems_per_step=2
rollout.group_size=4
rollout.max_tokens=16
evaluation.problems=2
evaluation.samples=1
steps=100000"""


WATCH_VERDICT = """() => {
  window.said = [];
  const verdict = document.querySelector(".verdict");
  const said = () => verdict.textContent && window.said.push(verdict.textContent);
  new MutationObserver(said).observe(verdict, { childList: true });
}"""


@pytest.fixture(scope="module", autouse=True)
def root(shared_lab: Lab) -> Iterator[Path]:
    make_hostile_run(shared_lab.root / "hostile")
    make_hostile_run(shared_lab.root / "huge", longest=LONGEST)
    yield shared_lab.root
    process = RunDirectory(shared_lab.root / "seen").holder()
    if process is not None:  # a failed test leaves its run behind
        os.kill(process, signal.SIGKILL)


def shown_step(page: Any) -> int:
    """The newest step that the charts of a run say they show."""
    return max((int(step) for step in re.findall(r"\bstep (\d+)", page.locator("main").inner_text())), default=0)


def test_a_run_is_started_followed_and_stopped(browser: Opened, page: Any, root: Path):
    browser.go("/")
    page.get_by_role("button", name="Start a run").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("seen")
    dialog.get_by_role("textbox").last.fill("rollout.grup_size=4")
    dialog.get_by_role("button", name="Start", exact=True).click()
    dialog.get_by_text("rollout.group_size").wait_for()  # the nearest key, and what was typed is still there
    assert dialog.get_by_label("Name").input_value() == "seen"
    dialog.get_by_role("textbox").last.fill(QUICK)
    # While it starts, the button says so: one by a part of its name is "Close and start in the background" as well.
    dialog.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/#/runs/seen", timeout=90_000)  # it loads a model first
    page.evaluate("window.notReloaded = true")
    page.locator(".page canvas").nth(2).wait_for()
    first = page.locator("canvas").first.screenshot()
    seen = [shown_step(page)]
    until = time.monotonic() + 60
    while len(seen) < 3 and time.monotonic() < until:
        page.wait_for_timeout(300)
        if shown_step(page) > seen[-1]:
            seen.append(shown_step(page))
    assert len(seen) == 3, "the charts do not move"
    assert page.locator("canvas").first.screenshot() != first
    # What came of the run is asked for when it has stopped, and the answer may take its time.
    page.evaluate(WATCH_VERDICT)
    page.route("**/api/runs/seen", lambda route: (time.sleep(2), route.continue_()))
    page.get_by_role("button", name="Stop").first.click()
    page.locator(".mark", has_text="stopped").first.wait_for(timeout=30_000)
    page.locator(".verdict", has_text="Unfinished at step").wait_for()
    page.unroute("**/api/runs/seen")
    assert all(said.startswith("Unfinished at step") for said in page.evaluate("window.said"))
    assert page.evaluate("window.notReloaded")
    assert RunDirectory(root / "seen").holder() is None


ADDRESSES = [
    "/", "/runs/hostile", "/runs/hostile/groups", "/runs/hostile/groups/1", "/compare/hostile",
    *(f"/runs/hostile/groups/1/{group}" for group in range(5)), "/step?run=hostile&step=3",
    "/runs/hostile/groups?text=script", "/runs/hostile/groups?text=%3Cimg", "/step", "/group", "/ppo",
    "/runs/huge/groups/1", *(f"/runs/huge/groups/1/{group}" for group in range(5)),
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_hostile_text_is_only_ever_text_and_everything_can_be_used(browser: Opened, page: Any, address: str):
    browser.go(address)
    page.wait_for_timeout(300)
    for button in page.get_by_role("button", name=re.compile("Next:|Tokens")).all()[:4]:
        button.click()
        page.wait_for_timeout(100)
    assert_only_text(browser)
    assert_every_control_has_a_name(page)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "something sticks out on a phone"


def assert_only_text(browser: Opened) -> None:
    page = browser.page
    assert page.evaluate("window.hostile") is None
    made = "main script, main iframe, main style, main img:not([src^='static/']), main object"
    assert page.evaluate(f"document.querySelectorAll(`{made}`).length") == 0
    links = page.evaluate("[...document.querySelectorAll('a, form, area')].map((e) => e.href?.baseVal ?? e.href ?? '')")
    assert [link for link in links if link and not link.startswith(browser.watched.base)] == []
    shown = page.locator("main").inner_text()
    assert not set("\u202e\u202d\u2066\u00ad\u200b\x1b\x00\U000e0041") & set(shown)


def assert_every_control_has_a_name(page: Any) -> None:
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("main button, main a, main input, main select, main textarea")]
          .filter((e) => e.offsetParent !== null)
          .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length || e.title))
          .map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    ordered = "main [tabindex]:not([tabindex='0']):not([tabindex='-1'])"
    assert page.evaluate(f"document.querySelectorAll(`{ordered}`).length") == 0


def test_a_script_is_read_as_it_was_written(browser: Opened, page: Any):
    browser.go("/runs/hostile/groups/1/2")
    page.get_by_text("<script>window.hostile = 1; alert(1)</script>").first.wait_for()
    assert TEXTS["script"] in page.locator("main").inner_text()


def test_without_a_session_there_is_no_page(browser: Opened):
    stranger = browser.page.context.browser.new_page()
    answer = stranger.goto(f"{browser.watched.base}/")
    assert answer.status == 401
    assert "link" in stranger.inner_text("body")
    stranger.close()
