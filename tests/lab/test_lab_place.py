"""Which folder `grouprl lab PLACE` shows, and which page its link opens."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli import app
from lab_browser import needs_chromium, opened, served
from lab_runs import CONFIG, Made, make_run


def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["lab", str(tmp_path / "rusn"), "--no-browser"])
    assert "expected a folder of runs, or a run, found no such folder: check the path" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


@needs_chromium
@pytest.mark.slow
def test_the_link_of_a_run_opens_its_page(tmp_path: Path) -> None:
    for name in ("one", "a <b> & 'c'"):
        make_run(tmp_path / name, [Made((1.0, 0.0), advantages=(1.0, -1.0))], config=CONFIG)
        with served(tmp_path / name) as lab, opened(lab) as browser:
            browser.page.get_by_role("heading", level=1).filter(has_text=name).wait_for()
            browser.page.get_by_role("link", name="Runs", exact=True).first.click()
            browser.page.get_by_role("link", name=name).first.wait_for()
            browser.watched.assert_quiet()
