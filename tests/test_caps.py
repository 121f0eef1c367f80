"""How large the whole may be, and what keeps its parts in their places: the rules of single modules are in
test_architecture.py."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

import pytest

from source_tree import LEAVES, ROOT, SRC, TRUNK, lines_of_code, modules, room_of

# Modules beside the packages.
ALONE = {"types", "files", "leaves", "step"}
WAYS = {"A reward": "reward_files", "A setting": "setting_files", "The length penalty": "penalty_files"}
SMALL_FILE, SMALL_FILE_WORDS = 60, 6
KINDS = ("*.py", "*.md", "*.c", "*.h", "*.js", "*.yaml")
CAPS: dict[str, int] = tomllib.loads((ROOT / "tests" / "caps.toml").read_text(encoding="utf-8"))
CORE = {"types", "step", "algorithms", "forward", "rollout", "learner", "run"}


def test_few_modules_stand_beside_the_packages():
    assert {path.stem for path in SRC.glob("*.py")} - {"__init__", "__main__"} == ALONE


def code_in(rooms: Collection[str]) -> int:
    return sum(lines_of_code(module.source) for module in modules() if module.room in rooms)


def lines_in(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def arrows() -> int:
    """Pairs of rooms of the trunk of which the first imports the second."""
    found = {(module.room, room_of(name)) for module in modules() for name in module.imports()}
    trunk = set(TRUNK.split())
    return len({(one, other) for one, other in found if one != other and {one, other} <= trunk})


def read_for_one_update() -> list[str]:
    """The files that the page on the architecture names, in order."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paragraph = page[page.index("Read in this order:") : page.index("That is one update")]
    return re.findall(r"`([\w/]+\.py)`", paragraph)


def way(value: str) -> list[str]:
    """The files that the page names on the way of a value; none where it counts others."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paragraph = page[page.index(f"**{value}**") :].partition("\n\n")[0]
    files = re.findall(r"`([\w/]+\.py)`", paragraph)
    return files if f" {len(files)} files" in paragraph else []


@cache
def sizes() -> dict[str, int]:
    pages = sorted((ROOT / "docs").glob("*.md"))
    scripts = (path for path in SRC.rglob("*.js") if "vendor" not in path.parts)
    return {
        "python": sum(lines_of_code(module.source) for module in modules()),
        "core": code_in(CORE),
        "trunk": code_in(TRUNK.split()),
        **{leaf: code_in([leaf]) for leaf in LEAVES.split()},
        "javascript": lines_in(scripts),
        "tests": lines_in((ROOT / "tests").rglob("*.py")),
        "update": lines_in(SRC / name for name in read_for_one_update()),
        **{name: len(way(value)) for value, name in WAYS.items()},
        "docs_words": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "docs_pages": len(pages),
        "folders": sum(path.is_dir() and not path.name.startswith("_") for path in SRC.iterdir()),
        "arrows": arrows(),
    }


@pytest.mark.parametrize("part", CAPS)
def test_nothing_grows(part: str):
    size, cap = sizes()[part], CAPS[part]
    assert size <= cap, f"{part}: {size:,}, at most {cap:,}: delete, or raise it and say in CHANGELOG.md what it buys"


def test_the_page_says_about_how_long_the_files_of_one_update_are():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \|", page, re.MULTILINE)
    assert [name for name, _ in rows] == read_for_one_update()
    assert [int(lines) for _, lines in rows] == pytest.approx([lines_in([SRC / name]) for name, _ in rows], rel=0.1)


def test_every_part_has_a_cap():
    assert sizes().keys() == CAPS.keys()
    assert all((SRC / file).exists() for value in WAYS for file in (way(value) or ["none"]))


def test_the_length_penalty_is_known_where_the_page_says():
    named = re.compile(r"(?<!mask_)overlong(?!_prompts)", re.IGNORECASE)
    texts = {str(path.relative_to(SRC)): path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    assert {file for file, text in texts.items() if named.search(text)} == set(way("The length penalty"))


def test_no_class_has_the_name_of_another():
    names = Counter(
        node.name.lstrip("_") for module in modules() for node in module.tree.body if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


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
