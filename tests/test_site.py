"""The pages as a site: each page in the navigation, what comes from code on it, and what stops the build."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from grouprl.algorithms.named import NAMED
from grouprl.cli.settings import setting_rows
from grouprl.config.algorithm import all_options
from grouprl.record.metrics import METRICS
from grouprl.tools.imported.keys import NOT_NEEDED, TRL, VERL
from grouprl.types import UserError

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs/site")
        pytest.importorskip("zensical")
        pytest.importorskip("latex2mathml")
        return import_module("build")


@pytest.fixture(scope="module")
def site(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builder.build(ROOT, tmp_path_factory.mktemp("site"))


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_page_is_once_in_the_navigation(builder: ModuleType) -> None:
    entries = builder.staging.navigation(ROOT)
    listed = Counter(page for group in entries[1:] for pages in group.values() for page in pages)
    pages = {path.stem for kind in ("*.md", "*.ipynb") for path in (ROOT / "docs").glob(kind)} - {"README"}
    assert listed == Counter(f"{name}.md" for name in pages | {"contributing", "changelog"})
    assert [*map(len, entries)] == [1] * 6


@pytest.mark.slow
def test_the_site_has_what_code_says(site: Path) -> None:
    """Every setting, metric, key of another trainer, algorithm with its options, command and Python name."""
    for page, names in {
        "configuration": [key for key, _, _ in setting_rows()],
        "metrics": list(METRICS),
        "keys/trl": TRL,
        "keys/verl": [*VERL, *NOT_NEEDED],
        "python": ["group_advantages", "Trainer"],
        "commands": ["grouprl replay", "--resume"],
    }.items():
        text = text_of(site / f"{page}.html")
        assert [name for name in names if name not in text] == [], page
    for name, algorithm in NAMED.items():
        page = text_of(site / f"algorithms/{name}.html")
        assert [option for option in all_options(algorithm) if option not in page] == []
        assert "ALGORITHM = " in page
    assert (site / "source/src/grouprl/step.py.html").exists()


@pytest.mark.slow
def test_equations_need_no_script(site: Path) -> None:
    pages = [ROOT / "docs/algorithms.md", *(ROOT / "docs/algorithms").glob("*.md")]
    written = sum(page.read_text(encoding="utf-8").count("\n$$\n") // 2 for page in pages)
    shown = [page.read_text(encoding="utf-8") for page in (site / "algorithms.html", *(site / "algorithms").iterdir())]
    assert sum(text.count('display="block"') for text in shown) == written > 30
    assert not any("arithmatex" in text.partition("<article")[2] for text in shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "error"),
    [
        ("[a](no_such_page.md)", UserError),
        ("[a](../src/no_such_file.py)", UserError),
        ("[a](models.md#no-such-heading)", subprocess.CalledProcessError),
        ("![a](https://example.org/picture.png)", UserError),
    ],
)
def test_what_is_broken_stops_the_build(builder: ModuleType, tmp_path: Path, link: str, error: type[Exception]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "docs", copy / "docs")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Dockerfile"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "benchmarks", "tests"):
        (copy / name).symlink_to(ROOT / name)
    page = copy / "docs/rewards.md"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{link}\n", encoding="utf-8")
    with pytest.raises(error):
        builder.build(copy, tmp_path)
