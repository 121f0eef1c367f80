"""How large the whole may be, and what keeps its parts in their places: the rules of single modules are in
test_architecture.py."""

import ast
import re
from collections import Counter
from collections.abc import Callable

import pytest

from source_tree import ROOT, SRC, modules

# Modules beside the packages.
ALONE = {"types", "step"}
BESIDE = 6
SMALL_FILE, SMALL_FILE_WORDS = 60, 6
KINDS = ("*.py", "*.md", "*.c", "*.h", "*.js", "*.yaml")
# Lines of the whole; where the second number is lower, it is the aim, and the first falls until both are one.
CORE = {"types", "algorithms", "models", "rollout", "learner", "step", "run"}
CORE_LINES, CORE_AIM = 14_491, 6_500
LIBRARY_LINES, LIBRARY_AIM = 41_591, 20_000  # without the lab
LAB_LINES, LAB_AIM = 3_228, 3_000
SCRIPT_LINES, SCRIPT_AIM = 5_990, 5_500  # JavaScript of the page, without vendor


def test_few_modules_stand_beside_the_packages():
    beside = {path.stem for path in SRC.glob("*.py")} - {"__init__", "__main__"}
    assert beside <= ALONE
    assert len(beside) <= BESIDE


def lines_of(room: Callable[[str], bool]) -> int:
    return sum(len(module.source.splitlines()) for module in modules() if room(module.room))


@pytest.mark.parametrize(
    ("room", "lines", "aim"),
    [
        pytest.param(lambda room: room in CORE, CORE_LINES, CORE_AIM, id="core"),
        pytest.param(lambda room: room != "lab", LIBRARY_LINES, LIBRARY_AIM, id="library"),
        pytest.param(lambda room: room == "lab", LAB_LINES, LAB_AIM, id="lab"),
    ],
)
def test_the_whole_stays_small(room: Callable[[str], bool], lines: int, aim: int):
    found = lines_of(room)
    assert found <= lines, f"{found} lines, at most {lines} (the aim: {aim}): delete or think"


def test_the_page_stays_small():
    scripts = [path for path in SRC.rglob("*.js") if "vendor" not in path.parts]
    found = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in scripts)
    assert 0 < found <= SCRIPT_LINES, f"{found} lines, at most {SCRIPT_LINES} (the aim: {SCRIPT_AIM})"


def test_no_cap_is_below_its_aim():
    """A cap that has reached its aim is written as one number."""
    caps = [(CORE_LINES, CORE_AIM), (LIBRARY_LINES, LIBRARY_AIM), (LAB_LINES, LAB_AIM), (SCRIPT_LINES, SCRIPT_AIM)]
    assert all(cap >= aim for cap, aim in caps)


def test_a_small_file_with_one_importer_says_why_it_is_a_file():
    """That its reason is a good one is for people; that it gives more than its name, for this."""
    found = {module.name: module for module in modules()}
    importers = Counter(
        name for module in found.values() for name in {nearest(dotted, set(found)) for dotted in module.imports()}
    )
    terse = []
    for name, module in found.items():
        small = len(module.source.splitlines()) < SMALL_FILE and not module.is_package
        first = (ast.get_docstring(module.tree) or "").partition("\n")[0]
        if small and importers[name] == 1 and len(first.split()) < SMALL_FILE_WORDS:
            terse.append(f"{name}: {first!r}")
    assert terse == []


def nearest(dotted: str, known: set[str]) -> str:
    """The module that an imported name is in: 'grouprl.types.Problem' -> 'grouprl.types'."""
    while dotted and dotted not in known:
        dotted = dotted.rpartition(".")[0]
    return dotted


CITED = re.compile(r"(?<![\w/])(?:benchmarks|tests)/[\w/]+\.py\b")


@pytest.mark.parametrize("folder", ["src", "docs", "benchmarks"])
def test_a_script_that_is_cited_is_there(folder: str):
    texts = {path: path.read_text(encoding="utf-8") for kind in KINDS for path in (ROOT / folder).rglob(kind)}
    cited = {(str(path.relative_to(ROOT)), name) for path, text in texts.items() for name in CITED.findall(text)}
    assert [pair for pair in sorted(cited) if not (ROOT / pair[1]).exists()] == []


def test_no_test_module_is_imported_by_another():
    """What several share lies in tests/support, the only folder of tests on the path."""
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    broken = [path for path, text in sources.items() if re.search(r"^\s*(?:from|import) test_", text, re.MULTILINE)]
    assert broken == []
