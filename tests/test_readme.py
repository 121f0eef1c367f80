"""The README's Python is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_there_is_python_in_the_readme() -> None:
    assert BLOCKS, f"{README}: expected an example in a ```python block, found none: show how Trainer is used"


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block {number}" for number in range(1, len(BLOCKS) + 1)])
def test_a_block_runs_in_an_empty_folder(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(README), "exec"), {"__name__": "__main__"})
    assert "Traceback" not in capsys.readouterr().err
    if "Trainer(" in block:
        runs = list((tmp_path / "runs").iterdir())
        assert [(run / "report.html").is_file() for run in runs] == [True]
