"""GRPO step by step in a real browser: the handles are dragged, and what is read there is worked out by hand."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl import Trainer
from lab_browser import Lab, Opened, needs_chromium, opened
from letter_rewards import letters
from page_numbers import near, read, table
from small_runs import ROWS, rollouts, small_config
from variants import variant

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def root(tiny: Path, shared_lab: Lab) -> Path:
    root = shared_lab.root
    Trainer(tiny, ROWS, [letters], variant(clip_low=0.1, clip_high=0.3), small_config(root, steps=2)).train()
    return root


@pytest.fixture(scope="module")
def browser(shared_lab: Lab, root: Path) -> Iterator[Opened]:
    with opened(shared_lab) as browser:
        yield browser


@pytest.fixture
def page(browser: Opened) -> Iterator[Any]:
    browser.watched.forget()
    yield browser.page
    browser.watched.assert_quiet()


def clipped(ratio: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    """PPO's objective of one token and its gradient by the token's log-prob (arXiv:1707.06347, equation 7)."""
    bound = min(max(ratio, 1 - low), 1 + high)
    free = ratio * advantage <= bound * advantage
    return (ratio * advantage, ratio * advantage) if free else (bound * advantage, 0.0)


@pytest.mark.parametrize(("place", "low", "high"), [(0, 0.2, 0.2), (1, 0.2, 0.28), (0, 0.4, 0.05)])
def test_the_ratio_is_dragged_over_the_clip(browser: Opened, page: Any, place: int, low: float, high: float):
    browser.go("/step?rewards=1,0,0,1&stage=ratio")
    handle = page.get_by_role("slider", name="Ratio")
    handle.wait_for()
    for name, chosen in {
        "Advantage A": {"index": place},
        "low": {"value": f"{low}"},
        "high": {"value": f"{high}"},
    }.items():
        page.locator("label.field", has_text=name).locator("select").select_option(**chosen)
    page.wait_for_timeout(500)
    advantage, sides = (1.0, -1.0)[place], set()
    handle.focus()
    for key, times in (("Home", 1), ("PageUp", 2), ("PageUp", 2), ("ArrowRight", 7), ("PageUp", 3), ("End", 1)):
        for _ in range(times):
            page.keyboard.press(key)
        ratio = float(handle.get_attribute("aria-valuenow"))
        objective, gradient = clipped(ratio, advantage, low, high)
        told = page.locator(".read").first.inner_text()
        assert read(told)[:3] == [near(ratio), near(objective), near(gradient)]
        assert ("There is no gradient" in told) == (gradient == 0.0)
        sides.add(gradient == 0.0)
    assert sides == {True, False}


def test_all_stages_are_on_paper_and_the_screen_shows_them_one_by_one(browser: Opened, page: Any, root: Path):
    page.emulate_media(media="screen")
    browser.go("/step?run=run&step=1")
    stages, heard = page.locator(".stage"), page.locator(".walk > [aria-live]")
    page.wait_for_timeout(300)  # the curves are asked for
    assert (stages.count(), page.locator(".stage:visible").count()) == (9, 1)
    assert page.locator(".stage").get_by_role("heading", level=2).count() == 1  # for who listens as well
    page.locator(".next button:visible").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.stage')") is None  # nothing hidden has the focus
    page.emulate_media(media="print")
    assert page.locator(".stage:visible").count() == 9
    assert not page.locator(".next:visible, .choose:visible, .side:visible").count()
    shown = "all => all.map((one) => [one.clientWidth, one.closest('.plot').clientWidth])"
    widths = page.locator(".plot canvas").evaluate_all(shown)
    assert len(widths) == 3
    assert all(drawn == pytest.approx(width, abs=2) for drawn, width in widths)
    page.emulate_media(media="screen")
    assert page.locator(".stage:visible").count() == 1
    drawn = page.locator(".plot canvas").evaluate_all(shown)
    for place, title in enumerate(
        ["4 completions", "Rewards", "Mean and deviation", "Advantages", "Ratio and clip"], 2
    ):
        page.keyboard.press("ArrowRight")
        assert page.locator(".stage:visible").count() == place
        assert page.evaluate("document.activeElement.textContent") == f"{place}{title}"
        assert heard.inner_text().startswith(f"Stage {place} of 9: {title}. ")
        assert 0 <= page.locator("#" + page.evaluate("document.activeElement.id")).bounding_box()["y"] < 800
        assert page.locator(".next button:visible").count() == 1
    assert page.locator(".plot canvas").evaluate_all(shown) == drawn  # as wide as it was drawn
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.id") == "title-advantages"
    assert page.locator(".stage:visible").count() == 6
    page.get_by_role("button", name="The update (not shown yet)").click()
    assert page.locator(".stage:visible").count() == 9
    assert page.evaluate("location.hash").endswith("stage=update")


def test_the_kl_is_dragged_over_three_estimates(browser: Opened, page: Any):
    browser.go("/step?rewards=1,0,0,1&stage=kl")
    handle = page.get_by_role("slider", name="Log of pi ref over pi theta, values")
    handle.wait_for()
    seen = set()
    for key in ("Home", "PageUp", "PageUp", "PageUp", "ArrowLeft", "PageUp", "PageUp", "End"):
        handle.press(key)
        x = float(handle.get_attribute("aria-valuenow"))
        seen.add(math.copysign(1, x))
        # joschu.net/blog/kl-approx.html with log p = -x: estimates, and their derivatives by the log-prob.
        by_hand = {"k1": (-x, 1.0), "k2": (x * x / 2, -x), "k3": (math.exp(x) - 1 - x, 1 - math.exp(x))}
        shown = {f"k{int(row[0])}": row[1:] for row in table(page, "Estimates and gradients at this point")}
        assert shown == {name: [near(value), near(slope)] for name, (value, slope) in by_hand.items()}
    assert seen == {1.0, -1.0}


def test_the_update_of_typed_rewards_moves_as_it_should(browser: Opened, page: Any):
    """Four completions of 1/4: their mean is 1/2 and their deviation 1/2, so the softmax moves by +-1/4 of the rate."""
    browser.go("/step?rewards=1,0,0,1&stage=update")
    rows = table(page, "Probabilities before and after")
    rate = read(page.get_by_text("The learning rate was").inner_text())[0]
    assert rate > 0
    up, down = math.exp(rate / 4), math.exp(-rate / 4)
    for place, (index, advantage, before, after, factor) in enumerate(rows):
        chance = (up if place in (0, 3) else down) / (2 * up + 2 * down)
        assert index == place
        assert advantage == near(1.0 if place in (0, 3) else -1.0)
        assert (before, after, factor) == (0.25, pytest.approx(chance, abs=6e-4), pytest.approx(4 * chance, abs=6e-3))


def test_the_update_of_a_run_is_what_it_recorded(browser: Opened, page: Any, root: Path):
    watched = rollouts(
        root / "run",
        "SELECT group_index, learner_logprobs, updated_logprobs, advantage FROM completions WHERE step = 1 "
        "AND updated_logprobs IS NOT NULL ORDER BY completion_index",
    )
    browser.go("/step?run=run&step=1&stage=update")
    shown = table(page, "Probabilities before and after")
    assert len(shown) == len(watched) > 1
    changed = []
    for (_, advantage, before, after, factor), (_, learner, updated, credit) in zip(shown, watched, strict=True):
        start, end = (math.exp(math.fsum(array("f", one))) for one in (learner, updated))
        assert advantage == near(credit)
        # Three digits, or one decimal of a power of ten.
        assert (before, after) == (pytest.approx(start, rel=6e-2), pytest.approx(end, rel=6e-2))
        assert factor == pytest.approx(end / start, rel=6e-3)
        changed.append(abs(end / start - 1))
    assert max(changed) > 1e-3
