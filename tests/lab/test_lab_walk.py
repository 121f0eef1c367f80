"""GRPO step by step in a real browser: the handles are dragged, and what is read there is worked out by hand."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest

from grouprl import Trainer
from lab_browser import Lab, Opened, needs_chromium
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
