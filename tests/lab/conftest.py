"""The browser of a module's tests, on the runs of its own `root`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab_browser import Lab, Opened, opened


@pytest.fixture(scope="module")
def browser(shared_lab: Lab, root: Path) -> Iterator[Opened]:
    with opened(shared_lab) as browser:
        yield browser


@pytest.fixture
def page(browser: Opened) -> Iterator[Any]:
    browser.watched.forget()
    yield browser.page
    browser.watched.assert_quiet()
