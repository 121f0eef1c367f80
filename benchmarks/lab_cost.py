"""What an open lab takes from a training run: processor seconds of the server, and of a browser that draws the run.

python benchmarks/lab_cost.py [--steps 24] [--rounds 3]

Trains the demo alone, with a lab whose stream of events is read, and with a headless Chromium on the page of the run
(where there is one), in turns. The demo's steps take half a second, which makes it a hard case: the page redraws at
each. "Share": processor seconds of the lab over seconds of training, of one core.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Of a process with its descendants."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return (int(stat[11]) + int(stat[12])) / TICKS + sum(processor_seconds(int(child)) for child in children)


def train(runs: Path, name: str, steps: int) -> subprocess.Popen[bytes]:
    words = ["train", "demo", "--name", name, f"runs_dir={runs}", f"steps={steps}", "evaluation.samples=1"]
    command = [sys.executable, "-m", "grouprl", *words, "evaluation.problems=8"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def lab(runs: Path) -> Iterator[tuple[int, str]]:
    """A server's process id and its link."""
    words = [sys.executable, "-u", "-m", "grouprl", "lab", str(runs), "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, next(line.strip() for line in process.stdout if line.startswith("http"))
    finally:
        process.terminate()
        process.wait()


def stream(link: str, run: str) -> None:
    """Reads the events of a run until the lab ends."""
    parts = urlsplit(link)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0)
    connection.request("GET", f"{parts.path}?{parts.query}")
    opened = connection.getresponse()
    cookie, _, rest = (opened.getheader("set-cookie") or "").partition(";")
    home = next(one.partition("=")[2] for one in rest.split("; ") if one.lower().strip().startswith("path="))
    opened.read()
    connection.request("GET", f"{home}api/runs/{run}/events", headers={"cookie": cookie})
    events = connection.getresponse()
    assert events.status == 200, events.read()
    try:
        while events.readline():
            pass
    except (OSError, http.client.HTTPException):
        return


@contextmanager
def drawn(link: str, run: str, chromium: str) -> Iterator[int]:
    """The process id of what drives a browser on the page of a run."""
    from playwright.sync_api import sync_playwright

    before = set(descendants(os.getpid()))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(link)
        page.wait_for_selector("main .page")
        page.goto(f"{page.url.partition('#')[0]}#/runs/{run}")
        page.wait_for_selector("main .page canvas")
        (root,) = set(descendants(os.getpid())) - before
        yield root
        browser.close()


def descendants(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measured(kind: str, runs: Path, name: str, steps: int, chromium: str) -> dict[str, float]:
    """Seconds of training, and processor seconds of the server and of the browser meanwhile."""
    with ExitStack() as stack:
        training = train(runs, name, steps)
        watched: dict[str, Callable[[], float]] = {}
        if kind != "alone":
            pid, link = stack.enter_context(lab(runs))
            while not (runs / name / "metrics.jsonl").exists():
                training.poll()
                assert training.returncode is None
            watched["server"] = lambda: processor_seconds(pid)
            if kind == "page":
                root = stack.enter_context(drawn(link, name, chromium))
                watched["browser"] = lambda: processor_seconds(root)
            else:
                threading.Thread(target=stream, args=(link, name), daemon=True).start()
        before, done = {what: read() for what, read in watched.items()}, steps_done(runs / name)
        training.wait()
        spent = {what: read() - before[what] for what, read in watched.items()}
        rows = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        seconds = [row["time/total"] for row in rows]
        return {"step": statistics.median(seconds[2:]), "watched": sum(seconds[done:]), **spent}


def steps_done(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="one streamed run of three steps, without a browser")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or ""
    if given.smoke:
        given.steps, given.rounds, chromium = 3, 1, ""
    kinds = ["stream"] if given.smoke else ["alone", "stream", *(["page"] if chromium else [])]
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for kind in kinds:
                one = measured(kind, Path(folder), f"{kind}-{number}", given.steps, chromium)
                found[kind].append(one)
                print(kind, {name: round(value, 3) for name, value in one.items()}, flush=True)
    print(f"\n{'':<8}{'step, s':>10}{'server':>10}{'browser':>10}   share of one core")
    for kind, rounds in found.items():
        seconds = statistics.median(one["step"] for one in rounds)
        shares = {
            what: f"{sum(one[what] for one in rounds) / sum(one['watched'] for one in rounds):.1%}"
            for what in ("server", "browser")
            if what in rounds[0]
        }
        print(f"{kind:<8}{seconds:>10.3f}{shares.get('server', ''):>10}{shares.get('browser', ''):>10}")


if __name__ == "__main__":
    main()
