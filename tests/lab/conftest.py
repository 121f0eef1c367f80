"""The lab on a folder of runs: as a client of its routes, and in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from grouprl.lab.server import create_app

if TYPE_CHECKING:
    from lab_browser import Lab, Opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder of runs."""
    root = tmp_path / "runs"
    root.mkdir()
    return root


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(create_app(root)) as client:
        yield client


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The lab of a folder to which test modules add runs; what they added nobody changes."""
    from lab_browser import served  # skips where there is no Playwright

    with served(tmp_path_factory.mktemp("shared")) as lab:
        yield lab


@pytest.fixture(scope="module")
def browser(shared_lab: Lab) -> Iterator[Opened]:
    from lab_browser import opened

    with opened(shared_lab) as browser:
        yield browser


@pytest.fixture
def page(browser: Opened) -> Iterator[Any]:
    """The browser's page, in which nothing goes wrong but an answer that a test expects to be refused."""
    browser.page.set_viewport_size({"width": 1280, "height": 900})
    browser.watched.forget()
    yield browser.page
    browser.page.unroute_all()
    browser.watched.complaints[:] = [said for said in browser.watched.complaints if "Failed to load" not in said]
    browser.watched.assert_quiet()
