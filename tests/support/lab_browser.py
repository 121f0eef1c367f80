"""A real headless Chromium on a real `grouprl lab`, watched for anything that a page should not do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: apt install chromium")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@dataclass
class Lab:
    """A lab that is served. Its link works once: the browsers after the first bring the first one's session."""

    link: str
    root: Path
    home: str = ""
    session: Any = None


@contextmanager
def served(root: Path) -> Iterator[Lab]:
    """`grouprl lab ROOT` in a process of its own."""
    words = [sys.executable, "-m", "grouprl", "lab", str(root), "--no-browser"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    try:
        yield Lab(next(line.strip() for line in process.stdout if line.startswith("http")), root)
    finally:
        process.terminate()
        process.wait(20)


@dataclass
class Watched:
    """What a browser did besides showing the page."""

    base: str  # of the lab: scheme, host and port; of a page in a file its address
    outside: list[str] = field(default_factory=list)  # requests to anywhere else
    complaints: list[str] = field(default_factory=list)  # of the console: errors, and what the policy stopped
    dialogs: list[str] = field(default_factory=list)

    def watch(self, page: Any) -> None:
        page.on("request", lambda request: self._asked(request.url))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dialog)

    def _asked(self, url: str) -> None:
        if url != self.base and not url.startswith((f"{self.base}/", "data:")):
            self.outside.append(url)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def forget(self) -> None:
        """Begins anew."""
        for seen in (self.outside, self.complaints, self.dialogs):
            seen.clear()

    def assert_quiet(self) -> None:
        assert (self.outside, self.complaints, self.dialogs) == ([], [], [])


@dataclass(frozen=True)
class Opened:
    """A page of the lab in a browser."""

    page: Any
    watched: Watched
    home: str  # where the page lies

    def go(self, address: str) -> None:
        """To another page of the lab, by what stands after the #, as its links lead there."""
        before = self.page.url
        if before.partition("#")[0] == self.home and before != f"{self.home}#{address}":
            # Five times as fast as to load everything anew.
            self.page.evaluate("document.querySelector('main .page')?.setAttribute('data-left', '')")
            self.page.evaluate("(address) => { location.hash = address; }", address)
        else:
            self.page.goto("about:blank")  # or nothing would be loaded that can be waited for
            self.page.goto(f"{self.home}#{address}")
        self.page.wait_for_selector("main .page:not([data-left])")


@contextmanager
def opened(what: Lab | Path) -> Iterator[Opened]:
    """A new browser that shows the first page of a lab or of a file."""
    lab = what if isinstance(what, Lab) else Lab(what.as_uri(), what.parent)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        context = browser.new_context(viewport={"width": 1280, "height": 900}, storage_state=lab.session)
        page = context.new_page()
        page.set_default_timeout(20_000)
        watched = Watched(lab.link.partition("/?")[0])
        watched.watch(page)
        page.goto(lab.home or lab.link)
        page.wait_for_selector("main .page")
        lab.home, lab.session = page.url.partition("#")[0], context.storage_state()
        watched.forget()  # the door has no icon, which a browser asks for and complains about
        yield Opened(page, watched, lab.home)
        browser.close()
