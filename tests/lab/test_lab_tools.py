"""What can be done with the charts of a run: saved, pinned, found, folded, printed; and the theme."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from grouprl.config.command_line import RECIPES
from grouprl.config.run import RunConfig, load_config
from lab_browser import Lab, Opened, needs_chromium, opened, served
from lab_runs import Made, make_run

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(120)]
REWARDS = [0.25, 0.5, 0.125, 1.0]
ADDRESS = "/runs/tools"


@pytest.fixture(scope="module")
def lab(shared_lab: Lab) -> Iterator[Opened]:
    run = make_run(shared_lab.root / "tools", *([Made([1.0, 0.0])] for _ in REWARDS))
    rows = [{"step": step, "reward": reward, "loss": 0.01} for step, reward in enumerate(REWARDS, start=1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with opened(shared_lab) as lab:
        lab.go(ADDRESS)
        yield lab
        lab.watched.assert_quiet()


def saved(page: Any, kind: str, folder: Path) -> Path:
    """The file that a chart's menu saves."""
    card = page.get_by_role("region", name="Reward", exact=True)
    card.locator(".menu summary").click()
    with page.expect_download() as download:
        card.get_by_role("button", name=kind).click()
    assert download.value.suggested_filename == f"Reward.{kind.lower()}"
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_a_chart_is_saved_as_its_values_and_as_a_picture(lab: Opened, tmp_path: Path) -> None:
    table = list(csv.reader(saved(lab.page, "CSV", tmp_path).read_text().splitlines()))
    assert table == [["step", "total"], *([str(step), f"{reward:g}"] for step, reward in enumerate(REWARDS, start=1))]
    root = ElementTree.parse(saved(lab.page, "SVG", tmp_path)).getroot()
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    assert {"Reward", "step"} <= {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    points = [[float(number) for number in point.split(",")] for point in line.attrib["points"].split()]
    # Equal steps to the right; higher rewards lie higher, in proportion.
    assert [right[0] - left[0] for left, right in pairwise(points)] == pytest.approx(
        [(points[3][0] - points[0][0]) / 3] * 3, abs=0.2
    )
    scale = (points[3][1] - points[2][1]) / (REWARDS[3] - REWARDS[2])
    assert scale < -50
    assert [y for _, y in points] == pytest.approx([points[2][1] + scale * (one - 0.125) for one in REWARDS], abs=0.2)
    head = saved(lab.page, "PNG", tmp_path).read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert [int.from_bytes(head[16:20]), int.from_bytes(head[20:24])] == pytest.approx([2 * width, 2 * height], abs=2)


def test_a_pinned_chart_comes_first_and_stays_pinned(lab: Opened) -> None:
    page = lab.page
    page.get_by_role("button", name="Pin: Loss").click()
    assert page.locator(".folds h2").first.inner_text() == "Pinned"
    assert page.evaluate("document.activeElement.ariaLabel") == "Pin: Loss"  # the card moved, and the focus with it
    page.reload()
    page.locator(".folds").first.get_by_role("region", name="Loss").wait_for()
    page.get_by_role("button", name="Pin: Loss").click()
    assert page.locator(".folds h2").first.inner_text() == "Results"


def test_charts_are_found_and_sections_fold(lab: Opened) -> None:
    page = lab.page
    page.get_by_label("Find a chart").fill("LOSS")
    assert page.locator(".chart-card:visible h3").all_inner_texts() == ["Loss"]
    page.get_by_label("Find a chart").fill("<b>")
    page.get_by_text("No chart has \u201c<b>\u201d in its title.").wait_for()
    page.get_by_label("Find a chart").fill("")
    page.locator(".folds summary h2").first.click()
    assert not page.get_by_role("region", name="Reward", exact=True).is_visible()
    page.locator(".folds summary h2").first.click()
    assert page.get_by_role("region", name="Reward", exact=True).is_visible()


def test_the_theme_is_chosen_kept_and_reaches_the_charts(lab: Opened) -> None:
    page = lab.page
    background = "getComputedStyle(document.body).backgroundColor"
    light, drawn = page.evaluate(background), page.locator("canvas").first.screenshot()
    page.get_by_label("Theme").select_option("dark")
    page.reload()
    page.locator("canvas").first.wait_for()
    assert sum(map(int, re.findall(r"\d+", page.evaluate(background)))) < 100
    assert page.locator("canvas").first.screenshot() != drawn
    page.get_by_label("Theme").select_option("")
    assert page.evaluate(background) == light


def test_printed_charts_fit_their_cards_and_are_light(lab: Opened) -> None:
    page = lab.page
    page.set_viewport_size({"width": 1440, "height": 900})
    lab.go(ADDRESS)
    canvas = page.locator(".chart-card canvas").first
    canvas.wait_for()
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate("getComputedStyle(document.body).color")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 900})  # of A4 at 96 dots per inch, less the margins
    card, drawn = page.locator(".chart-card").first.bounding_box(), canvas.bounding_box()
    assert drawn["x"] + drawn["width"] <= card["x"] + card["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.evaluate("getComputedStyle(document.body).color") != dark
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("getComputedStyle(document.body).color") == dark
    page.get_by_label("Theme").select_option("")


def test_a_folder_without_runs_says_how_to_begin(lab: Opened, tmp_path: Path) -> None:
    with served(tmp_path) as empty:
        page = lab.page.context.new_page()
        page.goto(empty.link)
        begin = page.get_by_role("heading", name="No run yet")
        begin.wait_for()
        assert page.locator(".tools > :visible").all_inner_texts() == ["Start a run"]
        for address in ("#/step", "#/group", "#/ppo"):
            page.locator(f".empty a[href='{address}']").click()
            page.locator("main .explains h1").wait_for()
            page.go_back()
            begin.wait_for()
        page.close()


@pytest.mark.parametrize("width", [1024, 1179, 1001, 390])
def test_the_list_of_runs_fits_its_window(lab: Opened, width: int) -> None:
    lab.page.set_viewport_size({"width": width, "height": 800})
    lab.go("/")
    lab.page.locator(".runs-table").wait_for()
    assert lab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_run_is_chosen_from_lists(lab: Opened) -> None:
    """What the page sends is a configuration: of the chosen names, with the weight and the file of a reward."""
    page, sent = lab.page, []
    page.set_viewport_size({"width": 1280, "height": 900})
    page.route("**/api/runs", lambda route: sent.append(route.request.post_data_json) or route.abort()
               if route.request.method == "POST" else route.continue_())  # fmt: skip
    lab.go("/")
    page.get_by_role("button", name="Start a run").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Algorithm").fill("dapo")
    dialog.get_by_label("Task, data file").fill("gsm8k")
    dialog.get_by_label("Rewards separated by commas").fill("correct_answer, mine.py:short=0.2")
    assert page.locator("[id='of algorithm'] option[value=rloo]").count() == 1
    dialog.get_by_role("textbox").last.fill("steps=3")
    dialog.get_by_role("button", name="Start").click()
    dialog.locator(".wrong .error, .wrong .text").first.wait_for()
    page.unroute_all()
    dialog.get_by_role("button", name="Close").click()
    lab.watched.forget()  # Chromium says of the request that was stopped here that it was
    config = load_config(RunConfig, [RECIPES / "demo.yaml"], sent[0]["changes"])
    assert (config.algorithm.name, config.task.name, config.steps) == ("dapo", "gsm8k", 3)
    assert [(one.name, one.path, one.weight) for one in config.rewards] == [
        ("correct_answer", None, 1.0), ("short", "mine.py", 0.2),
    ]  # fmt: skip
