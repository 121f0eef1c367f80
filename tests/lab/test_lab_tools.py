"""What can be done with the charts of a run: saved as files, in another theme; and a lab without runs."""

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
