"""The explaining pages in a real browser: what is dragged and chosen there, and arithmetic that is written out."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from grouprl.config.run import RunConfig, dump_config
from lab_browser import Lab, Opened, needs_chromium
from lab_runs import Made, make_run
from variants import variant

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(240)]
AWKWARD = (-3.34, -2.84, -3.0, -3.0)


@pytest.fixture(scope="module", autouse=True)
def dual(shared_lab: Lab) -> None:
    """A recorded run whose objective has every bound."""
    algorithm = variant(dual_clip=3.0, minibatches=2)
    config = dump_config(RunConfig(name="dual", algorithm=algorithm, rollout={"max_tokens": 8}))
    make_run(shared_lab.root / "dual", [Made((1.0, 0.0), advantages=(1.0, -1.0))], config=config)
    algorithm = variant("vespo", drift_coef=0.5, aggregate="prompt_mean", baseline="length_mean", scale="none")
    config = dump_config(RunConfig(name="vespo", algorithm=algorithm, rollout={"max_tokens": 8}))
    make_run(shared_lab.root / "vespo", [Made((1.0, 0.0), advantages=(0.5, -0.5))], config=config)


def read(text: str) -> list[float]:
    """The numbers in a text of the page, with its minus and its powers of ten."""
    raised = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
    text = re.sub(r" × 10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", lambda found: f"e{found[1].translate(raised)}", text).replace("−", "-")
    return [float(one) for one in re.findall(r"[-+]?\d+(?:\.\d+)?(?:e-?\d+)?", text.replace(",", ""))]


def near(expected: float | list[float]) -> Any:
    """As far as the page writes numbers out: to three decimals, or to two digits of a very small one."""
    return pytest.approx(expected, abs=6e-4, rel=6e-2 if isinstance(expected, float) and abs(expected) < 1e-3 else 1e-3)


def table(page: Any, name: str) -> list[list[float]]:
    """The numbers of a table's rows, that of the completion first."""
    rows = page.get_by_role("region", name=name).locator("tbody tr")
    rows.first.wait_for()
    return [read(" ; ".join(row.locator("th, td").all_text_contents())) for row in rows.all()]


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


def formulas(page: Any, stage: str) -> list[str]:
    """The equations of a stage, as they are read aloud."""
    page.locator(f"#stage-{stage}").wait_for()
    return [one.get_attribute("aria-label") for one in page.locator(f"#stage-{stage} .equation").all()]


def signs(page: Any, stage: str) -> list[str]:
    """The same as they are seen, without spaces."""
    return ["".join(one.split()) for one in page.locator(f"#stage-{stage} .equation").all_text_contents()]


def choice(page: Any, name: str) -> Any:
    return page.locator("#stage-ratio label.field", has_text=name).locator("select")


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
    assert "in one update. " in page.locator("#stage-update").inner_text()


def test_vespo_a_drift_and_a_mean_by_prompt_are_written_out(browser: Opened, page: Any) -> None:
    browser.go("/step?run=vespo&step=1&stage=loss")
    assert signs(page, "advantages") == ["Ai=ri−∑jTjrj∑jTj"]  # the second sum below the first
    assert signs(page, "ratio")[1] == "Si,t=sg[wikeλ(1−wi)]Ailogπθ(oi,t),wi=∏tρi,t"
    assert signs(page, "loss") == ["J=∑i,twi,t(−Si,t+c(logπθ(oi,t)πold(oi,t))2)", "wi,t=1P∑jingroupTj"]
    assert "Here c = 0.5." in page.locator("#stage-loss p").all_inner_texts()
    choice(page, "k where A").first.select_option("5")
    handle = page.get_by_role("slider", name="Ratio")
    handle.press("End")
    page.locator("#stage-ratio .read", has_text="0.49").wait_for()  # of the curve with the k that was chosen
    ratio, objective, gradient = read(page.locator("#stage-ratio .read").inner_text())
    weight = 2.5**5 * math.exp(3 * (1 - 2.5))
    assert (ratio, objective, gradient) == (2.5, near(0.5 * weight * math.log(2.5)), near(0.5 * weight))


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


def test_a_prediction_is_judged_by_the_computed_number(browser: Opened, page: Any) -> None:
    browser.go("/step?rewards=1,0,0,1&stage=loss")
    asked = page.locator("#stage-loss .predict form")
    for choice, verdict in (("as hard", "\u2717 wrong"), ("10 times as hard", "\u2713 right")):
        asked.get_by_label(choice, exact=True).check()
        asked.get_by_role("button", name="Reveal").press("Enter")
        said = asked.get_by_role("status").inner_text()
        assert said.startswith(f"{verdict} 10 times. ")
        assert said.endswith("the factor is 1; with a constant length, as in Dr.GRPO, 1.")
