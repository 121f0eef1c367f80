"""The Python of the README and of docs/start.md is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "start.md")
BLOCKS = [
    pytest.param(block, page, id=f"{page.name} {number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL), 1
    )
]


def test_there_is_python_on_each_page() -> None:
    shown = {block.values[1] for block in BLOCKS}
    assert shown == set(PAGES), "expected an example in a ```python block on each: show how Trainer is used"


@pytest.mark.parametrize(("block", "page"), BLOCKS)
def test_a_block_runs_in_an_empty_folder(
    block: str, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(page), "exec"), {"__name__": "__main__"})
    assert "Traceback" not in capsys.readouterr().err
    if "Trainer(" in block:
        runs = [run for run in (tmp_path / "runs").iterdir() if run.name != "models"]
        assert [(run / "report.html").is_file() for run in runs] == [True]
