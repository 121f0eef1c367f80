"""report.html in a browser, opened from its file: no server, no request, no script but its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grouprl.lab.report.write import write_report
from hostile_run import make_hostile_run
from lab_browser import Opened, needs_chromium, opened
from recorded_runs import record_run

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    report = write_report(record_run(tmp_path_factory.mktemp("runs") / "a run"))
    with opened(report) as browser:
        yield browser


def test_groups_and_tokens_can_be_read_and_steps_that_are_not_held_are_not_offered(shown: Opened) -> None:
    shown.go("/")
    shown.page.get_by_role("link", name="Groups and completions").first.click()
    shown.page.wait_for_selector("h1:has-text('Groups of step 60')")
    shown.page.get_by_label("Previous step").click()
    shown.page.wait_for_selector("h1:has-text('Groups of step 30')")
    shown.page.get_by_label("Number of the step").fill("14")
    shown.page.get_by_label("Number of the step").press("Enter")
    shown.page.wait_for_selector("h1:has-text('Groups of step 1')")
    shown.page.locator(".grouprow a").first.click()
    shown.page.get_by_role("button", name="Tokens").click()
    shown.page.wait_for_selector(".tokenpanel")
    assert "Group 0 of step 1" in shown.page.inner_text("h1")
    shown.watched.assert_quiet()


def test_nothing_is_offered_that_needs_a_lab(shown: Opened) -> None:
    for address in ("/runs/a%20run", "/runs/a%20run/groups", "/runs/a%20run/groups/1/0"):
        shown.go(address)
        words = [*shown.page.get_by_role("button").all_inner_texts(), *shown.page.get_by_role("link").all_inner_texts()]
        for word in ("Stop", "Resume", "Fork", "Search all steps", "Follow the newest", "Compare", "Runs"):
            assert word not in words
        assert not [word for word in words if word.startswith(("Explained", "This problem through", "This group step"))]
    shown.watched.assert_quiet()


def test_hostile_texts_run_nothing_in_the_file(shown: Opened, tmp_path: Path) -> None:
    make_hostile_run(tmp_path / "run", steps=1)
    report = write_report(tmp_path / "run")
    assert report.stat().st_size < 3_000_000
    for address in ("/", "/runs/run/groups", "/runs/run/groups/1/0"):
        shown.page.goto(f"{report.as_uri()}#{address}")
        shown.page.wait_for_selector("main .page")
        shown.page.wait_for_timeout(300)
        assert shown.page.evaluate("window.hostile") is None
    outside = [url for url in shown.watched.outside if url != report.as_uri()]
    assert (outside, shown.watched.complaints, shown.watched.dialogs) == ([], [], [])
