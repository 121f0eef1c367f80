"""The explaining pages in a real browser: each run has its own formulas, and arithmetic that is written out is true."""

from __future__ import annotations

import math
import re
from array import array
from pathlib import Path
from typing import Any

import pytest

from grouprl import Trainer
from grouprl.algorithms.named import NAMED
from grouprl.rewards.functions import WeightedReward
from lab_browser import Lab, Opened, needs_chromium
from lab_runs import CONFIG, Made, make_run
from letter_rewards import letters, words
from page_numbers import near, read, table
from small_runs import ROWS, rollouts, small_config
from variants import variant

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(240)]

AWKWARD = (-3.34, -2.84, -3.0, -3.0)
WEIGHED = (WeightedReward("letters", letters), WeightedReward("words", words, per_step=True))


@pytest.fixture(scope="module", autouse=True)
def root(tiny: Path, shared_lab: Lab) -> Path:
    root = shared_lab.root
    made = {"grpo": NAMED["grpo"], "rloo": NAMED["rloo"], "dual": variant(dual_clip=3.0, minibatches=2)}
    for name, algorithm in made.items():
        Trainer(tiny, ROWS, [letters], algorithm, small_config(root, name, steps=1)).train()
    Trainer(tiny, ROWS, list(WEIGHED), NAMED["grpo_process"], small_config(root, "process", steps=1)).train()
    Trainer(tiny, ROWS, [letters], variant(clip_low=0.1, clip_high=0.3), small_config(root, "walk", steps=2)).train()
    awkward = Made(AWKWARD, advantages=(-1.617, 1.124, 0.247, 0.247))
    make_run(root / "awkward", [awkward], config=CONFIG + "rollout: {max_tokens: 8}\n")
    return root


def value(side: str) -> float:
    """What one side of a written equation comes to."""
    side = re.sub(
        r" × 10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", lambda f: f"e{f[1].translate(str.maketrans('⁰¹²³⁴⁵⁶⁷⁸⁹⁻', '0123456789-'))}", side
    )
    side = side.translate(str.maketrans({"−": "-", "×": "*", "²": "**2"})).replace("√", "math.sqrt")
    assert re.fullmatch(r"(?:math\.sqrt|[-+*/(). \de])+", side), side
    return float(eval(side, {"math": math}))


def check(written: str) -> int:
    """Every equality in a line of arithmetic; gives how many there were."""
    sides = re.split(r"([=≈])", written)
    for left, sign, right in zip(sides[::2], sides[1::2], sides[2::2], strict=False):
        # Terms of five digits: what they come to is right to nearly as many.
        allowed = 1e-9 if sign == "=" else 2e-4
        assert value(left) == pytest.approx(value(right), rel=allowed, abs=allowed), written
    return len(sides) // 2


def test_the_arithmetic_of_typed_rewards_is_true(browser: Opened, page: Any) -> None:
    browser.go(f"/step?rewards={','.join(map(str, AWKWARD))}&stage=advantages")
    mean, _, deviation = page.locator("#stage-statistics .worked li").all_inner_texts()
    assert mean.startswith("μ = ((−3.34) + (−2.84) + (−3) + (−3)) / 4 = −12.18 / 4 = −3.045")
    assert check(mean.partition("= ")[2]) == 2
    assert check(deviation.partition("= ")[2]) == 1
    example = page.locator("#stage-advantages p", has_text="Completion 0:").inner_text()
    assert [check(one) for one in re.findall(r"[−\d][^,:=≈]* [=≈] [−+]?[\d.]*\d", example)] == [1, 1]


@pytest.mark.parametrize("run", ["awkward", "grpo", "rloo"])
def test_the_arithmetic_of_a_recorded_group_is_true(browser: Opened, page: Any, run: str) -> None:
    browser.go(f"/runs/{run}/groups/1/0")
    lines = page.locator(".statistics dl.worked dd").all_inner_texts()
    rows = page.locator(".statistics .by-hand tbody tr td:nth-child(4)").all_inner_texts()
    checked = [check(part) for line in [*lines, *rows] for part in line.split(";") if "=" in part or "≈" in part]
    assert sum(checked) >= 4 + len(rows)
    if run == "awkward":
        assert "−12.18 / 4 = −3.045" in lines[0]


@pytest.mark.parametrize("run", ["grpo", "rloo", "dual"])
def test_the_arithmetic_of_a_stage_is_true(browser: Opened, page: Any, run: str) -> None:
    browser.go(f"/step?run={run}&step=1&stage=advantages")
    page.locator("#stage-advantages p", has_text="Completion 0:").wait_for()
    lines = page.locator("#stage-statistics .worked li", has_text=re.compile("^[μσ]")).all_inner_texts()
    assert sum(check(line.partition(" ")[2].partition(" ")[2]) for line in lines) >= 2


def formulas(page: Any, stage: str) -> list[str]:
    """The equations of a stage, as they are read aloud."""
    page.locator(f"#stage-{stage}").wait_for()
    return [one.get_attribute("aria-label") for one in page.locator(f"#stage-{stage} .equation").all()]


def signs(page: Any, stage: str) -> list[str]:
    """The same as they are seen, without spaces."""
    return ["".join(one.split()) for one in page.locator(f"#stage-{stage} .equation").all_text_contents()]


def choice(page: Any, name: str) -> Any:
    return page.locator("#stage-ratio label.field", has_text=name).locator("select")


def test_a_run_without_a_clip_shows_none(browser: Opened, page: Any) -> None:
    browser.go("/step?run=rloo&step=1&stage=kl")
    ratio, surrogate = formulas(page, "ratio")
    assert ratio.startswith("the ratio rho i t is pi theta of the token over pi old")
    assert surrogate == "S i t is rho i t times A"
    assert signs(page, "ratio") == ["ρi,t=πθ(oi,t)πold(oi,t)", "Si,t=ρi,tAi"]
    assert signs(page, "kl") == ["Di,t=logπold(oi,t)πref(oi,t)", "Ri=ri−β∑tDi,t"]
    assert signs(page, "advantages") == ["Ai=Ri−1n−1∑j≠iRj"]
    stage = page.locator("#stage-ratio")
    stage.get_by_text("objective", exact=True).wait_for()
    assert stage.locator("label.field:visible span").all_inner_texts() == [
        "Advantage A",
        "Surrogate",
    ]
    assert stage.locator(".mark-line").count() == 1  # where every ratio begins
    for key in ("Home", "End"):
        stage.get_by_role("slider").press(key)
        assert "ε" not in stage.inner_text()
        assert ("There is no gradient" in stage.inner_text()) == (key == "Home")
    estimate, reward = formulas(page, "kl")
    assert estimate == "the estimate D i t, k1, is the log of pi old over pi ref of the token"
    assert "R i" in reward
    told = page.locator("#stage-kl summary", has_text="In this group").inner_text()
    assert (
        told
        == "In this group rloo subtracts k1, times β = 0.03, from the reward, estimated from the sampler's log-probs."
    )
    assert "KL penalty" in page.locator("#stage-rewards thead").inner_text()


def test_a_dual_clip_is_asked_for_and_shown(browser: Opened, page: Any) -> None:
    browser.go("/step?run=dual&step=1&stage=update")
    assert formulas(page, "ratio")[2] == "where A is below 0, S i t is at least c times A"
    assert signs(page, "ratio")[1:] == ["Si,t=min(ρi,tAi,clip(ρi,t,1−εlow,1+εhigh)Ai)", "Si,t←max(Si,t,cAi)whereAi<0"]
    handle = page.get_by_role("slider", name="Ratio")
    handle.wait_for()
    lowest = choice(page, "Advantage A").locator("option").last
    choice(page, "Advantage A").select_option(lowest.get_attribute("value"))
    page.locator("#stage-ratio .plot").get_by_text("3", exact=True).wait_for()  # the bound has a mark
    assert float(handle.get_attribute("aria-valuemax")) == pytest.approx(3.6)
    advantage = read(lowest.inner_text())[0]
    assert advantage < 0
    handle.press("End")
    ratio, objective, gradient = read(page.locator("#stage-ratio .read").inner_text())
    assert (ratio, objective, gradient) == (near(3.6), pytest.approx(3 * advantage, rel=1e-3), 0)
    choice(page, "Dual clip").select_option("")
    page.locator("#stage-ratio .read", has_text="less probable").wait_for()
    assert "in 2 updates, each on a part of the batch" in page.locator("#stage-update").inner_text()


def test_steps_are_listed_and_added_up(browser: Opened, page: Any, root: Path) -> None:
    found = rollouts(
        root / "process",
        "SELECT step_rewards, reward FROM completions JOIN stages USING (step, group_index) "
        "WHERE step = 1 AND stage = 'loss' ORDER BY completion_index",
    )
    browser.go("/step?run=process&step=1&stage=advantages")
    said = page.locator("#stage-rewards dd").first.inner_text()
    assert said.startswith("A reward function scores each completion. Its value, times its weight, is the reward.")
    assert "does not include those rewards" in said
    rows = table(page, "Steps of the group")
    earned = [reward for row in found for reward in [*recorded_steps(row[0]), row[1]]]
    assert [row[-2] for row in rows] == near(earned)
    mean = math.fsum(earned) / len(earned)
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in earned) / len(earned))
    assert [row[-1] for row in rows] == pytest.approx([(one - mean) / deviation for one in earned], abs=2e-3)
    assert formulas(page, "advantages")[1].startswith("the advantage of token t is the sum of the normalized rewards")
    assert signs(page, "advantages") == ["r̃i,k=ri,k−μσ+ϵ", "Ai,t=∑k:end(k)≥tr̃i,k"]
    sums = page.locator("#stage-advantages .worked li").all_inner_texts()
    assert len(sums) > 1
    for line in sums:
        assert check(line.partition(": ")[2]) == 1


def recorded_steps(text: str) -> list[float]:
    return [float(reward) for _, reward in re.findall(r"\[(\d+), ([-\d.e]+)\]", text or "")]


def test_the_page_opens_on_grpo_and_says_what_is_missing(browser: Opened, page: Any) -> None:
    browser.go("/step")
    page.locator("#stage-prompt").wait_for()
    assert page.locator("select[name=run]").input_value() in {"grpo", "awkward", "walk", "dual"}  # the newest of them
    assert "(grpo)" in page.locator("select[name=run] option:checked").inner_text()
    browser.go("/step?run=not-yet")
    assert page.locator("select[name=run] option:checked").inner_text() == "not-yet (no steps)"
    assert "No step found for the run not-yet" in page.get_by_role("alert").last.inner_text()


def test_every_reward_has_its_place_on_the_sliders(browser: Opened, page: Any) -> None:
    browser.go("/group?rewards=50,1,0")
    slider, typed = (
        page.get_by_label(name, exact=True) for name in ("Completion 0: reward", "Completion 0: reward as a number")
    )
    assert [slider.input_value(), typed.input_value()] == ["50", "50"]
    page.get_by_label("Completion 1: reward as a number").fill("-7.5")
    assert page.get_by_label("Completion 1: reward", exact=True).input_value() == "-7.5"
    assert slider.input_value() == "50"
    more = page.get_by_role("button", name="Add one")
    more.focus()
    for _ in range(15):
        page.keyboard.press("Enter")
    assert page.locator(".editor li").count() == 16
    assert more.get_attribute("aria-disabled") == "true"
    assert page.evaluate("document.activeElement.textContent") == "Add one"


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


def test_the_update_of_a_run_is_what_it_recorded(browser: Opened, page: Any, root: Path):
    watched = rollouts(
        root / "walk",
        "SELECT group_index, learner_logprobs, updated_logprobs, advantage FROM completions WHERE step = 1 "
        "AND updated_logprobs IS NOT NULL ORDER BY completion_index",
    )
    browser.go("/step?run=walk&step=1&stage=update")
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
