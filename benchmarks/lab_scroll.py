"""Whether the lab's page scrolls at the rate of the screen: frames of a browser that scrolls through a big step.

python benchmarks/lab_scroll.py [--rows 10000] [--seconds 5]

A step of 10,000 completions as its grid, and what a search finds in it, in a headless Chromium that draws on the
processor; the wheel turns without pause. 16.7 ms is 60 frames a second.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab_pages import Rows, make_run
from playwright.sync_api import sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
START = """() => { const times = window.frameTimes = [];
  const frame = (at) => { times.push(at); requestAnimationFrame(frame); }; requestAnimationFrame(frame); }"""

FAR = "() => [...document.querySelectorAll('*')].reduce((sum, one) => sum + one.scrollTop, 0)"


def frames(page: Any, seconds: float) -> tuple[list[float], float]:
    """Milliseconds between frames while the wheel turns, and how far the page went, in pixels."""
    page.mouse.move(640, 500)
    page.evaluate(START)
    far, until = FAR, time.monotonic() + seconds
    before = page.evaluate(far)
    while time.monotonic() < until:
        page.mouse.wheel(0, 120)
        page.wait_for_timeout(30)
    times = page.evaluate("() => window.frameTimes")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return gaps, page.evaluate(far) - before


def show(name: str, gaps: list[float], went: float) -> None:
    inside = sum(gap <= 1000 / 60 + 2 for gap in gaps) / len(gaps)
    cuts = statistics.quantiles(gaps, n=100)
    print(
        f"{name:<28}{len(gaps):>5} frames, median {statistics.median(gaps):.1f} ms, 95 % within {cuts[94]:.1f}, "
        f"worst {max(gaps):.0f}; {inside:.0%} at 60 a second; {went:,.0f} px"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, help="completions of a step")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--smoke", action="store_true", help="a small run: whether it runs, not how fast")
    given = parser.parse_args()
    if given.smoke:
        given.rows, given.seconds = 64, 0.5
        if shutil.which("chromium") is None:
            print("skipped, everything: no Chromium here")
            return
    with tempfile.TemporaryDirectory(prefix="lab_scroll_") as place, sync_playwright() as driver:
        make_run(Path(place) / "big", 3, Rows(given.rows))
        words = [sys.executable, "-u", "-m", "grouprl", "lab", place, "--no-browser"]
        lab = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert lab.stdout is not None
        try:
            link = next(line.strip() for line in lab.stdout if line.startswith("http"))
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(link)
            page.wait_for_selector("main .page")
            home = page.url.partition("#")[0]
            for name, address in {"grid of a step": "groups/2", "search results": "groups?text=boxed"}.items():
                page.goto("about:blank")
                page.goto(f"{home}#/runs/big/{address}")
                page.wait_for_selector("main .page")
                page.wait_for_timeout(2000)
                show(name, *frames(page, given.seconds))
            browser.close()
        finally:
            lab.terminate()
            lab.wait()


if __name__ == "__main__":
    main()
