"""A site of recorded runs: the lab's own pages from files, with the lab's own answers, in a browser and without."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from grouprl.lab.report.write import rounded
from grouprl.lab.server import create_app
from grouprl.lab.site import write_site
from grouprl.types import UserError
from lab_browser import needs_chromium, opened
from recorded_runs import record_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "runs"
    root.mkdir()
    for name in ("a", "a b"):  # one name begins with the other
        record_run(root / name, steps=3)
    return root


@pytest.fixture(scope="module")
def site(runs: Path) -> Path:
    return write_site(runs, runs.parent / "out" / "site").parent


def held(site: Path) -> dict[str, Any]:
    """Every answer that the page's data and the scripts beside it hold, by its path."""
    page = (site / "index.html").read_text()
    match = re.search(r'<script type="application/json" id="held">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    data = json.loads(match[1])
    answers = dict(data["answers"])
    for script in set(data["parts"].values()):
        packed = re.fullmatch(r'held\("([A-Za-z0-9+/=]+)"\)\n', (site / script).read_text())
        assert packed is not None
        answers |= json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return answers


def test_every_answer_is_the_labs(runs: Path, site: Path) -> None:
    client = TestClient(create_app(runs))
    answers = held(site)
    paths = [path for path in answers if path not in ("runs", "session") and not path.startswith("static/")]
    groups = [path for path in paths if re.fullmatch(r"runs/a/groups/\d+/\d+", path)]
    tokens = [path for path in paths if path.startswith("runs/a%20b/completions/")]
    assert groups
    assert tokens
    for path in [*groups, *tokens, *paths[:: max(1, len(paths) // 60)]]:
        answer = client.get(f"/api/{path}").json()
        expected = {name: value for name, value in answers[path].items() if name != "held"}
        assert rounded(expected) == rounded(answer)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: (folder / "site").mkdir(), "site: expected a new folder, but it exists: remove it"),
        (lambda folder: (folder / "site").touch(), "site: expected a new folder, but it exists: remove it"),
    ],
)
def test_nothing_is_overwritten(runs: Path, tmp_path: Path, make: Any, sentence: str) -> None:
    make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=re.escape(sentence)):
        write_site(runs, tmp_path / "site")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_runs_is_no_site(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    found = subprocess.run(
        [sys.executable, "-m", "grouprl", "export", "--site", "runs", "out/site"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode != 0
    assert "runs: expected a folder of runs, found none" in found.stderr
    assert not (tmp_path / "out").exists()


@needs_chromium
def test_every_page_opens_from_a_folder(site: Path) -> None:
    with opened(site / "index.html") as browser:
        page = browser.page
        for address in (
            "/",
            "/runs/a",
            "/runs/a/groups",
            "/runs/a%20b/groups/3",
            "/runs/a/groups/1/0?c=0",
            "/compare/a,a%2520b",
            "/step?rewards=1,0,0,1&algorithm=gspo&stage=update",
            "/group?rewards=1,1,0,0,0,0,0,1",
            "/ppo",
        ):
            browser.go(address)
            page.wait_for_load_state("networkidle")
            assert not page.get_by_text("This site holds").count()
            assert not page.get_by_text("could not be shown").count()
        page.evaluate("location.hash = '#/group?rewards=0.3,0'")
        page.get_by_text("This site holds recorded answers alone, and not this one: install GroupRL").first.wait_for()
        browser.go("/")
        assert not page.get_by_role("button", name="Start a run").count()
        assert {url.rpartition("/")[0] for url in browser.watched.outside} == {(site / "data").as_uri()}
        assert browser.watched.complaints == []
