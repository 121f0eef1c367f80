"""The pages of runs and of a run while it runs, in a real browser, on runs of a few worked numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import RunConfig, dump_config
from lab_browser import Opened, needs_chromium, opened, served

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
