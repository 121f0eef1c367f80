"""What the pages do besides showing a healthy lab: keys, tabs, bad addresses, a lab that is gone, dialogs left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import RunConfig, dump_config
from grouprl.record.write import RunRecord
from lab_browser import Lab, Opened, needs_chromium, served
from lab_runs import Made, add_step, algorithm_config, make_run

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(240)]
SIGNAL = Made([1.0, 0.0, 1.0, 0.0], correct=[True, False, True, False], advantages=[1.0, -1.0, 1.0, -1.0])
WIDE = Made([1.0, 0.0] * 8, advantages=[1.0, -1.0] * 8)


@pytest.fixture(scope="module", autouse=True)
def root(shared_lab: Lab) -> Iterator[Path]:
    """Three runs with groups: two that are over, and one that somebody holds."""
    root = shared_lab.root
    make_run(root / "one", [SIGNAL], [SIGNAL], [SIGNAL, SIGNAL], [SIGNAL], config=config("one"))
    figures = {"reward": 0.5, "accuracy": 0.5, "frac_hopeless": 0.0, "frac_solved": 0.0}
    rows = [{"step": step, **figures} for step in range(1, 5)]
    (root / "one" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_run(root / "two", [WIDE], config=algorithm_config(name="grpo", surrogate="clip"))
    with RunRecord.create(root / "going", config("going", steps=9)) as record:
        add_step(record, 1, [SIGNAL])
        yield root


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


def test_a_run_without_a_verifier_says_what_cannot_be_told(browser: Opened, page: Any) -> None:
    show(browser, "/runs/going", ".chart-card")
    assert page.get_by_text("This task has no verifier").count() >= 1


def test_the_link_of_a_run_opens_its_page(browser: Opened, tmp_path: Path) -> None:
    for name in ("one", "a <b> & 'c'"):
        make_run(tmp_path / name, [Made((1.0, 0.0), advantages=(1.0, -1.0))])
        with served(tmp_path / name) as lab:
            page = browser.page.context.new_page()
            page.goto(lab.link)
            page.get_by_role("heading", level=1).filter(has_text=name).wait_for()
            page.get_by_role("link", name="Runs", exact=True).first.click()
            page.get_by_role("link", name=name).first.wait_for()
            page.close()
