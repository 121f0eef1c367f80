"""report.html in a browser, opened from its file: no server, no request, no script but its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.lab.report.write import write_report
from hostile_run import make_hostile_run
from lab_browser import Opened, needs_chromium, opened
from lab_runs import Made, make_run
from recorded_runs import record_run

pytestmark = [needs_chromium, pytest.mark.slow]
SENTENCE, SETTING = "Step 3: the KL to the reference is 5.46 nats per token.", "lower learner.learning_rate"
# Pixels of the color of marks, in the columns of a chart's canvas.
MARKED = """(title) => {
  const chart = document.querySelector(`section.chart-card[aria-label="${title}"]`);
  chart.scrollIntoView();
  return new Promise((done) => setTimeout(() => {
    const canvas = chart.querySelector("canvas"), { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const down = (x) => Array.from({ length: height }, (_, y) => 4 * (y * width + x));
    const columns = Array.from({ length: width }, (_, x) => down(x)
      .filter((at) => data[at] === 166 && data[at + 1] === 60 && data[at + 2] === 0 && data[at + 3] === 255).length);
    done(columns.map((count, x) => [x / width, count]).filter(([, count]) => count > height / 3).map(([x]) => x));
  }, 600));
}"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    report = write_report(record_run(tmp_path_factory.mktemp("runs") / "a run"))
    with opened(report) as browser:
        yield browser


def test_the_page_shows_what_came_of_the_run(shown: Opened) -> None:
    shown.go("/")
    text = shown.page.inner_text("main").replace("\N{NO-BREAK SPACE}", " ")
    assert "Greedy accuracy 31.2% → 97.4% on 500 held-out problems in 98 s of training." in text
    for cell in (
        *("27.3 to 35.4", "+66.2 points", "98.6 to 100.2", "44.9", "+23.5", "284,112", "912.4 MiB", "Xeon"),
        *("Where the time of a step goes", "config.yaml", "metrics.jsonl"),
    ):
        assert cell in text, cell
    titles = shown.page.locator(".chart-card h3").all_inner_texts()
    for title in ("Reward", "Held-out accuracy", "Solved, mixed and hopeless groups", "Problems seen"):
        assert any(one.startswith(title) for one in titles), title
    shown.page.get_by_text("config.yaml, complete").click()
    assert "kl_coef: 0.04" in shown.page.inner_text("main")
    shown.watched.assert_quiet()


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


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Five steps, with a loss that is none but for rounding and a warning about the third."""
    texts = [[f"{word} of step {step}" for word in ("low", "high", "middle")] for step in range(1, 6)]
    made = [[Made([0.0, 3.0, 1.0], f"train-{step}", texts=row)] for step, row in enumerate(texts)]
    run = make_run(tmp_path_factory.mktemp("runs") / "warned", *made)
    rows: list[dict[str, Any]] = [
        {"step": step, "reward": 0.5, "kl": 0.01 * step, "loss": 0.01 if step == 1 else -3e-8} for step in range(1, 6)
    ]
    warning = {"step": 3, "kind": "explosion", "metric": "kl", "sentence": SENTENCE, "setting": SETTING}
    for name, lines in (("metrics.jsonl", rows), ("warnings.jsonl", [warning])):
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with opened(write_report(run)) as shown:
        yield shown
        shown.watched.assert_quiet()


def test_the_first_screen_shows_the_course_and_a_loss_of_0(short: Opened) -> None:
    page = short.page
    assert page.locator(".course li").first.bounding_box()["y"] < 600
    assert page.locator(".course .said").all_inner_texts() == ["middle of step 1", "middle of step 5"]
    loss = page.get_by_role("region", name="Loss")
    loss.scroll_into_view_if_needed()
    loss.get_by_text("0 up to rounding").first.wait_for()
    loss.get_by_role("slider").press("Home")
    assert "loss 0.01" in loss.get_by_role("slider").get_attribute("aria-valuetext")


def test_a_warning_says_what_to_change_and_marks_the_chart_of_its_metric(short: Opened) -> None:
    (row,) = short.page.get_by_role("region", name="Warnings").locator("tbody tr").all_inner_texts()
    assert row.split("\t") == ["3", SENTENCE, SETTING]
    marks = short.page.evaluate(MARKED, "KL to the reference")
    assert marks
    assert 0.45 < sum(marks) / len(marks) < 0.62  # step 3 of 1 to 5, beside the axis
    assert short.page.evaluate(MARKED, "Reward") == []
