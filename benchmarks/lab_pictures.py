"""The pictures of the README and docs/lab.md: charts of a run's report.html, and every page of the lab, light and dark.

python benchmarks/lab_pictures.py RUNS RUN OTHER COMPARISON [--out docs/images] [--browser /usr/bin/chromium]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from made_up import made_up_comparison
from playwright.sync_api import sync_playwright

SIZE = {"width": 1280, "height": 900}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WAIT = 1500  # milliseconds until charts are drawn


def addresses(run: str, other: str, comparison: str) -> dict[str, str]:
    """By the picture's name, what stands after the # of the page."""
    return {
        "runs": "/",
        "run": f"/runs/{run}",
        "compare": f"/compare/{run},{other}",
        "comparison": f"/comparison/{comparison}",
        "groups": f"/runs/{run}/groups/5",
        "group": f"/runs/{run}/groups/1/0",
        "pushes": f"/runs/{run}/groups/1/0",
        "step": f"/step?run={run}&step=1",
        "one-group": "/group",
        "ppo": "/ppo",
    }


# By the picture's name, the title of a card or of a table in report.html.
CARDS = {
    "reward": "Reward",
    "accuracy": "Held-out accuracy",
    "shares": "What the policy writes",
    "time": "Time of a step",
}


def charts(report: Path, out: Path, chromium: str) -> None:
    """The cards of the page in the file, twice as sharp as a screen has them."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport=SIZE, device_scale_factor=2)  # type: ignore[arg-type]
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("main .page")
        for name, title in CARDS.items():
            card = page.get_by_role("region", name=title, exact=True).first
            card.scroll_into_view_if_needed()
            page.wait_for_timeout(WAIT)
            card.screenshot(path=out / f"{name}.png")
        browser.close()


def taken(link: str, pages: dict[str, str], out: Path, chromium: str, scheme: str) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(link)
        page.wait_for_selector("main .page")
        home = page.url.partition("#")[0]
        for name, address in pages.items():
            page.goto("about:blank")
            page.goto(f"{home}#{address}")
            page.wait_for_selector("main .page")
            page.wait_for_timeout(WAIT)
            if name == "step":
                for _ in range(5):  # to ratio and clip
                    page.keyboard.press("ArrowRight")
                    page.wait_for_timeout(WAIT // 5)
            if name == "pushes":
                card = page.get_by_text("These tokens under five algorithms")
                card.click()
                page.wait_for_selector("details[open] table")
                card.evaluate("one => window.scrollTo(0, one.getBoundingClientRect().top + window.scrollY - 20)")
                page.wait_for_timeout(WAIT)
            page.screenshot(path=out / f"lab-{name}-{scheme}.png")
            print(f"lab-{name}-{scheme}.png", flush=True)
        browser.close()


def pictures(runs: Path, pages: dict[str, str], out: Path, chromium: str) -> None:
    """Every page of a folder of runs, light and dark."""
    for scheme in ("light", "dark"):
        words = [sys.executable, "-u", "-m", "grouprl", "lab", str(runs), "--no-browser"]
        lab = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert lab.stdout is not None
        try:
            link = next(line.strip() for line in lab.stdout if line.startswith("http"))
            taken(link, pages, out, chromium, scheme)
        finally:
            lab.terminate()
            lab.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="?")
    parser.add_argument("run", nargs="?")
    parser.add_argument("other", nargs="?", help="to compare with")
    parser.add_argument("comparison", nargs="?", help="a folder of `grouprl compare`")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--browser", default=shutil.which("chromium"))
    parser.add_argument("--smoke", action="store_true", help="a made-up run, nothing kept: whether it runs")
    given = parser.parse_args()
    if given.smoke:
        if given.browser is None:
            print("skipped, everything: no Chromium here")
            return
        with tempfile.TemporaryDirectory() as place:
            made_up_comparison(Path(place))
            pictures(Path(place), {"runs": "/"}, Path(place), given.browser)
        return
    if given.comparison is None:
        parser.error("expected RUNS RUN OTHER COMPARISON")
    charts(given.runs / given.run / "report.html", given.out, given.browser)
    pictures(given.runs, addresses(given.run, given.other, given.comparison), given.out, given.browser)


if __name__ == "__main__":
    main()
