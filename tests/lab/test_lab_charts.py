"""Charts and explaining pages in a real browser, on runs of a few worked numbers: what they say is true."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import RunConfig, dump_config
from lab_browser import Lab, Opened, needs_chromium, opened, served
from lab_runs import Made, make_run
from variants import variant

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(240)]


def row(step: int, reward: float | None, **more: Any) -> dict[str, Any]:
    return {"step": step, "reward": reward, "completion_tokens": 100, "time/total": 2.0, "time/learn": 1.5, **more}


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    """As a resume does: another file in the place of the one that is there."""
    written = folder / "metrics.new"
    written.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    written.rename(folder / "metrics.jsonl")


def make(root: Path, name: str, rows: list[dict[str, Any]], *, steps: int = 10, seed: int = 0) -> Path:
    folder = root / name
    folder.mkdir()
    config = RunConfig(name=name, steps=steps, seed=seed)
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    write(folder, rows)
    measured = [
        {"step": step, "greedy_accuracy": share, "greedy_interval": [share - 0.125, share + 0.125], "problems": 8}
        for step, share in ((0, 0.25), (2, 0.5))
    ]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in measured), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make(root, "first", [row(1, 0.5, kl=0.01), row(2, 1.5, kl=0.02), row(3, None, kl=0.04)])
    make(root, "second", [row(1, 0.25), row(2, 0.75)], seed=1)
    make(root, "longer", [row(step, step / 8) for step in range(1, 8)])
    make(root, "live", [row(1, 0.5)])
    return root


@pytest.fixture(scope="module")
def lab(root: Path) -> Iterator[Opened]:
    with served(root) as served_lab, opened(served_lab) as lab:
        yield lab
        lab.watched.assert_quiet()


def shown(lab: Opened, address: str, sign: str) -> Any:
    """The page at an address, after something on it has appeared."""
    lab.page.goto("about:blank")
    lab.page.goto(f"{lab.home}#{address}")
    lab.page.wait_for_selector(sign)
    return lab.page


def chart(page: Any, title: str) -> Any:
    """The chart of a title, drawn."""
    found = page.get_by_role("slider", name=title, exact=True)
    found.scroll_into_view_if_needed()
    found.locator("canvas").wait_for()
    return found


def words(page: Any, title: str) -> str:
    """What is said of a chart to those who cannot see it."""
    described = chart(page, title).get_attribute("aria-describedby")
    return str(page.locator(f"#{described}").text_content())


def wait_for_words(page: Any, text: str) -> None:
    """Charts are drawn in the frame after the one in which a step arrives."""
    page.locator(".chart .unseen", has_text=text).first.wait_for(state="attached")


def of_module(lab: Opened, module: str, body: str) -> Any:
    return lab.page.evaluate(f"async () => {{ const m = await import('./static/parts/{module}.js'); {body} }}")


def test_a_step_that_is_made_again_takes_the_place_of_what_followed(lab: Opened) -> None:
    body = """const s = new m.Series();
      const row = (step, reward, more) => s.append({step, reward, tokens: 10 * step, seconds: step, ...more});
      row(1, 0.5); row(2, "NaN"); row(3, 0.7, {late: 1}); row(2, 0.9);
      return [s.step, s.tokens, s.column("reward"), s.column("late"), s.names(), s.last("reward"), s.column("none")];"""
    assert of_module(lab, "series", body) == [
        *([1, 2], [10, 20], [0.5, 0.9], [None, None], ["reward"], 0.9, [None, None]),
    ]


def test_a_chart_can_be_heard(lab: Opened) -> None:
    page = shown(lab, "/runs/first", ".chart-card")
    said = "From step 1 to step 3. total: from 0.5 to 1.5, lowest 0.5 at step 1, highest 1.5 at step 2."
    assert words(page, "Reward") == said
    held_out = "From step 0 to step 2. greedy: from 25.0% to 50.0%, lowest 25.0% at step 0, highest 50.0% at step "
    held_out += "2."
    assert words(page, "Held-out accuracy") == held_out
    # 2 s a step, 1.5 s of them learning: the rest has its own area.
    assert (
        words(page, "Where the time goes") == "From step 1 to step 3. learn: 1.5 s throughout. other: 0.5 s throughout."
    )
    page.get_by_role("button", name="completion tokens", exact=True).click()
    wait_for_words(page, "100 tokens to step 3, 300 tokens")
    chart(page, "KL to the reference")
    wait_for_words(page, "KL: from 0.01 to 0.04")
    assert words(page, "KL to the reference").startswith(
        "From step 1, 100 tokens to step 3, 300 tokens. KL: from 0.01 to 0.04"
    )


def test_a_chart_can_be_walked_by_keyboard(lab: Opened) -> None:
    page = shown(lab, "/runs/first", ".chart-card")
    reward = chart(page, "Reward")
    reward.focus()
    heard = []
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
        heard.append(reward.get_attribute("aria-valuetext"))
    assert heard == ["step 1: total 0.5", "step 2: total 1.5", "step 3: total \u2013", "step 3: total \u2013"]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert page.url.endswith("#/runs/first/groups/2")
    held_out = chart(shown(lab, "/runs/first", ".chart-card"), "Held-out accuracy")  # with its interval beside it
    held_out.focus()
    page.keyboard.press("Home")
    assert held_out.get_attribute("aria-valuetext") == "step 0: greedy 25.0% (12.5 to 37.5)"
    legend = page.get_by_role("region", name="Held-out accuracy", exact=True).locator(".chart-legend")
    assert "25.0% (12.5 to 37.5)" in legend.inner_text()


def test_a_run_that_makes_no_step_says_what_it_does(lab: Opened) -> None:
    def phase(step: int, evaluated: list[int], every: int = 0, status: str = "running") -> str:
        given = {"status": status, "step": step, "steps": 4, "config": {"evaluation": {"every": every}}}
        rows = [{"step": one} for one in evaluated]
        return str(of_module(lab, "run/head", f"return m.phase({json.dumps({**given, 'evaluations': rows})})"))

    assert phase(0, []) == "evaluating before training"
    assert phase(0, [0]) == phase(1, [0]) == phase(2, [0]) == ""
    assert phase(2, [0], every=2) == "evaluating"
    assert phase(2, [0, 2], every=2) == ""
    assert phase(4, [0]) == "final evaluation"
    assert phase(4, [0, 4]).startswith("saving")
    assert phase(4, [0], status="stopped") == ""


def test_steps_arrive_without_a_reload_and_go_when_a_resume_drops_them(lab: Opened, root: Path) -> None:
    page = shown(lab, "/runs/live", ".chart-card")
    page.evaluate("window.kept = true")
    rows = [row(1, 0.5), row(2, 0.75), row(3, 1.0, **{"rewards/form/mean": 0.5})]
    write(root / "live", rows)
    page.get_by_text("3 / 10").wait_for()
    wait_for_words(page, "From step 1 to step 3. total: from 0.5 to 1,")
    assert words(page, "Reward by function") == "From step 1 to step 3. form: 0.5 throughout."
    write(root / "live", [rows[0], row(2, 0.25)])
    page.get_by_text("2 / 10").wait_for()
    wait_for_words(page, "From step 1 to step 2. total: from 0.5 to 0.25,")
    assert page.evaluate("window.kept")


def test_the_list_of_runs_keeps_focus_and_choice_while_it_changes(lab: Opened, root: Path) -> None:
    page = shown(lab, "/", "tbody tr")
    order = page.locator("tbody tr th a").all_inner_texts()
    assert sorted(order) == ["first", "live", "longer", "second"]
    page.get_by_label("Compare second").check()
    page.get_by_label("Compare first").check()
    page.get_by_label("Compare first").focus()
    write(root / "longer", [row(step, 0.5) for step in range(1, 10)])  # the newest now, which moves nothing
    page.get_by_text("9 / 10").wait_for()
    assert page.locator("tbody tr th a").all_inner_texts() == order
    make(root, "newcomer", [row(1, 0.5)])
    page.get_by_role("link", name="newcomer").wait_for()
    assert page.locator("tbody tr th a").first.inner_text() == "newcomer"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Compare first"
    assert page.locator("tbody input:checked").count() == 2
    page.get_by_role("button", name="Compare 2 runs").click()
    page.wait_for_selector("h1:has-text('Compare 2 runs')")


AWKWARD = (-3.34, -2.84, -3.0, -3.0)


@pytest.fixture(scope="module", autouse=True)
def dual(shared_lab: Lab) -> None:
    """A recorded run whose objective has every bound."""
    algorithm = variant(dual_clip=3.0, minibatches=2)
    config = dump_config(RunConfig(name="dual", algorithm=algorithm, rollout={"max_tokens": 8}))
    make_run(shared_lab.root / "dual", [Made((1.0, 0.0), advantages=(1.0, -1.0))], config=config)


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
    assert "in 2 updates, each on a part of the batch" in page.locator("#stage-update").inner_text()


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
