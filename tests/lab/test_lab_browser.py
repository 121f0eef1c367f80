"""The lab as its users meet it, in a real browser: a run that trains while it is looked at, keys, bad addresses."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import RunConfig, dump_config
from grouprl.record.layout import RunDirectory
from grouprl.record.write import RunRecord
from hostile_run import LONGEST, TEXTS, make_hostile_run
from lab_browser import Lab, Opened, needs_chromium, served
from lab_runs import Made, add_step, algorithm_config, make_run

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
    dialog.get_by_role("textbox", name="Name").fill("seen")
    dialog.get_by_role("textbox").last.fill("rollout.grup_size=4")
    dialog.get_by_role("button", name="Start", exact=True).click()
    dialog.get_by_text("rollout.group_size").wait_for()  # the nearest key, and what was typed is still there
    assert dialog.get_by_role("textbox", name="Name").input_value() == "seen"
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


SIGNAL = Made([1.0, 0.0, 1.0, 0.0], correct=[True, False, True, False], advantages=[1.0, -1.0, 1.0, -1.0])
WIDE = Made([1.0, 0.0] * 8, advantages=[1.0, -1.0] * 8)


@pytest.fixture(scope="module", autouse=True)
def three(shared_lab: Lab) -> Iterator[None]:
    """Three runs with groups: two that are over, and one that somebody holds."""
    root = shared_lab.root
    make_run(root / "one", [SIGNAL], [SIGNAL], [SIGNAL, SIGNAL], [SIGNAL], config=config("one"))
    figures = {"reward": 0.5, "accuracy": 0.5, "frac_hopeless": 0.0, "frac_solved": 0.0}
    rows = [{"step": step, **figures} for step in range(1, 5)]
    (root / "one" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_run(root / "two", [WIDE], config=algorithm_config(name="grpo", surrogate="clip"))
    with RunRecord.create(root / "going", config("going", steps=9)) as record:
        add_step(record, 1, [SIGNAL])
        yield


def config(name: str, *, steps: int = 4) -> str:
    return dump_config(RunConfig(name=name, steps=steps))


def show(browser: Opened, address: str, sign: str = "main .page") -> Any:
    """Loads everything anew."""
    browser.page.goto("about:blank")
    browser.page.goto(f"{browser.home}#{address}")
    browser.page.wait_for_selector(sign)
    return browser.page


COUNT_STREAMS = """
  window.streams = new Set();
  const Real = EventSource;
  window.EventSource = class extends Real {
    constructor(...given) { super(...given); streams.add(this); }
    close() { super.close(); streams.delete(this); }
  };
"""


@pytest.fixture
def counting(browser: Opened) -> Iterator[Callable[[str], Any]]:
    """Opens a page of the lab in a tab of its own, which counts its streams of events."""
    context = browser.page.context.browser.new_context(storage_state=browser.page.context.storage_state())
    tab = context.new_page()
    tab.add_init_script(COUNT_STREAMS)

    def go(address: str) -> Any:
        tab.goto(f"{browser.home}#{address}")
        tab.wait_for_selector("main .page")
        return tab

    yield go
    context.close()


def test_the_first_tab_stop_leads_past_the_navigation_and_keeps_the_page(browser: Opened, page: Any) -> None:
    show(browser, "/runs/one", ".chart-card")
    address = page.url
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "page"
    page.wait_for_timeout(300)
    assert page.locator("h1").inner_text().startswith("one")
    assert page.url == address


def test_the_groups_of_a_run_that_is_over_hold_no_connection(counting: Callable[[str], Any]) -> None:
    tab = counting("/runs/one/groups/1")
    tab.get_by_role("grid").wait_for()
    tab.wait_for_timeout(500)
    assert tab.evaluate("streams.size") == 0


def test_a_page_that_cannot_be_fetched_says_so_and_is_there_when_it_can(browser: Opened, page: Any) -> None:
    show(browser, "/")
    page.route("**/static/pages/ppo.js", lambda route: route.abort())
    page.get_by_role("link", name="PPO and GRPO").click()
    alert = page.locator("main").get_by_role("alert")
    alert.get_by_text("The lab does not answer").wait_for()
    assert "TypeError" not in alert.inner_text()
    assert "http" not in alert.inner_text()
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("h1:has-text('PPO and GRPO')")


def test_a_comparison_shows_the_runs_that_are_there(browser: Opened, page: Any) -> None:
    show(browser, "/compare/one,nobody,going", ".chart-card")
    page.get_by_role("alert").get_by_text("nobody cannot be compared").wait_for()
    assert page.locator("h1").inner_text() == "Compare 2 runs"
    rows = page.get_by_role("region", name="Results").locator("tbody tr")
    assert [re.split(r"\s+", row.strip())[0] for row in rows.all_inner_texts()] == ["one", "going"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/runs/%", "invalid part"),
        ("/runs/nobody", "found none"),
        ("/compare/%25", "invalid part"),
        ("/nowhere", "No such page"),
        ("/runs/one/groups?problem=unknown", "has not sampled this problem"),
        ("/runs/one/groups?first=9&last=3", "Step from 9 to 3: the range is empty"),
    ],
)
def test_a_bad_address_is_told_once(browser: Opened, page: Any, address: str, expected: str) -> None:
    show(browser, address, f"main :text('{expected}')")
    page.wait_for_timeout(300)
    said = page.locator("main").inner_text()
    assert said.count(expected) == 1
    assert not any(text in said for text in ("Loading.", "There is nothing to look at", "newest first", "Sampled 0"))


def test_a_group_leads_to_its_own_walk(browser: Opened, page: Any) -> None:
    show(browser, "/runs/one/groups/3/1")
    assert page.get_by_text("grouprl replay runs/one 3").count() == 1
    assert page.get_by_role("link", name="Another group step by step").get_attribute("href") == "#/step?run=one"
    show(browser, "/runs/one/groups/1/0")
    page.get_by_role("link", name="This group step by step").click()
    page.wait_for_selector("h1:has-text('GRPO step by step')")
    assert page.url.endswith("#/step?run=one&step=1")
    page.get_by_text(re.compile(r"Step 1 of run one, group 0")).wait_for()
    show(browser, "/runs/one", ".explained")
    assert page.locator(".explained").first.get_attribute("href") == "#/step?run=one"


def test_the_link_of_a_run_opens_its_page(browser: Opened, tmp_path: Path) -> None:
    name = "a <b> & 'c'"
    make_run(tmp_path / name, [Made((1.0, 0.0), advantages=(1.0, -1.0))])
    with served(tmp_path / name) as lab:
        page = browser.page.context.new_page()
        page.goto(lab.link)
        page.get_by_role("heading", level=1).filter(has_text=name).wait_for()
        page.get_by_role("link", name="Runs", exact=True).first.click()
        page.get_by_role("link", name=name).first.wait_for()
        page.close()
