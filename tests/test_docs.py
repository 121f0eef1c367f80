"""docs/algorithms.md against the code: every name, field, default, number, equation and link on it."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import get_args

import pytest
from matplotlib.mathtext import MathTextParser
from typer.main import get_command_name

from grouprl.algorithms.named import NAMED
from grouprl.algorithms.option import hints
from grouprl.algorithms.spec import Algorithm
from grouprl.cli import app
from grouprl.cli.settings import setting_rows
from grouprl.config.algorithm import KINDS, all_options, differences, family_table

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "algorithms.md"
TEXT = PAGE.read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def displayed() -> list[str]:
    return re.findall(r"^\$\$\n(.*?)\n\$\$$", without_code(TEXT), re.MULTILINE | re.DOTALL)


def inline() -> list[str]:
    return re.findall(r"\$([^$\n]+)\$", re.sub(r"^\$\$\n.*?\n\$\$$", "", without_code(TEXT), flags=re.M | re.S))


def sections() -> dict[str, str]:
    """What stands under each heading of the third level that names algorithms, by name."""
    parts = re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return {name: body for heading, body in parts for name in heading.split(", ")}


def as_written(value: object) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


# Names


def test_every_name_has_a_section_and_every_section_of_the_family_a_name() -> None:
    family = TEXT[TEXT.index("## 2. ") : TEXT.index("## 3. ")]
    headings = [name for heading in re.findall(r"^### (.+)$", family, re.MULTILINE) for name in heading.split(", ")]
    assert sorted(headings) == sorted(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_a_section_lists_the_fields_in_which_the_algorithm_differs_from_grpo(name: str) -> None:
    listed = re.search(rf"^(?:\*\*Fields\*\*|- `{name}`):(.*?)(?=^$|^- |\Z)", sections()[name], re.M | re.S)
    assert listed, f"{PAGE}: expected a line '**Fields**: ...' or '- `{name}`: ...' under {name}"
    told = dict(re.findall(r"`(\w+)=([^`]+)`", listed[1]))
    assert told == {option: as_written(value) for option, value in differences(NAMED[name], Algorithm()).items()}


def test_the_table_of_the_family_is_the_one_that_the_code_prints() -> None:
    assert family_table() in TEXT


@pytest.mark.parametrize("name", [name for name in NAMED if f"### {name}\n" in TEXT])
def test_a_section_has_its_paper_its_metrics_and_its_curve(name: str) -> None:
    body = sections()[name]
    assert re.search(r"\*\*Source\*\*:.*?(arxiv\.org/abs/\d{4}\.\d{5}|doi\.org/)", body, re.DOTALL)
    assert all(f"**{part}**" in body for part in ("Choose it", "Watch", "Pitfalls"))
    assert f"](images/algorithm-{name}.png)" in body


# Fields

ROWS = {row[0]: row for row in re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (.*) \|$", TEXT, re.MULTILINE)}


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    assert sorted(ROWS) == sorted(["name", *all_options(Algorithm())])


@pytest.mark.parametrize(("option", "default"), all_options(Algorithm()).items(), ids=str)
def test_a_row_gives_the_default_and_every_choice(option: str, default: object) -> None:
    _, written, rest = ROWS[option]
    assert written == as_written(default)
    allowed = [hints(kind)[option] for kinds in KINDS.values() for kind in kinds if option in hints(kind)]
    choices = [choice for hint in allowed for choice in get_args(hint) if isinstance(choice, str)]
    assert [choice for choice in choices if f"`{choice}`" not in f"`{written}` {rest}"] == []


# Metrics


def test_metrics_to_watch_are_columns_of_the_run_directory() -> None:
    page = (ROOT / "docs" / "run_directory.md").read_text(encoding="utf-8")
    table = page[page.index("## metrics.jsonl") : page.index("## rollouts.sqlite")]
    keys = {key for cell in re.findall(r"^\|(.*?)\|", table, re.MULTILINE) for key in re.findall(r"`([^`]+)`", cell)}
    columns = {re.escape(key).replace("NAME", "[^/]+") for key in keys}
    watched = [
        name
        for paragraph in re.findall(r"\*Watch\*+:(.*?)(?=\n\n|\n- |\Z)", TEXT, re.DOTALL)
        for name in re.findall(r"`([^`]+)`", paragraph)
    ]
    assert len(watched) > 50
    assert [name for name in watched if not any(re.fullmatch(column, name) for column in columns)] == []


# Links


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_resolve(page: Path) -> None:
    broken = []
    for caption, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if "://" in target or caption.startswith("CURVE:"):  # a curve that has still to be measured
            continue
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert broken == []


def test_every_page_is_in_the_list_of_pages_and_every_command_on_its_page() -> None:
    listed = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for kind in ("*.md", "*.ipynb") for path in (ROOT / "docs").glob(kind)} - {"README.md"}
    assert [name for name in sorted(pages) if f"]({name})" not in listed] == []
    verbs = {get_command_name(one.name or one.callback.__name__) for one in app.registered_commands if one.callback}
    assert len(verbs) > 15
    shown = set(re.findall(r"^\| `grouprl ([a-z-]+)", (ROOT / "docs" / "commands.md").read_text("utf-8"), re.MULTILINE))
    assert shown == verbs


def test_the_options_of_openrlhf_lead_to_settings() -> None:
    rows = (ROOT / "docs" / "from_openrlhf.md").read_text(encoding="utf-8").partition("## Options")[2].splitlines()
    named = {
        name for row in rows for name in re.findall(r"`([a-z_.0-9]+)`", row.rsplit("|", 2)[-2] if "|" in row else "")
    }
    assert len(named) > 40
    assert named - {key for key, _, _ in setting_rows()} == set()


# Numbers and equations


def test_worked_numbers_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    session: dict[str, object] = {}
    runner, parser = doctest.DocTestRunner(verbose=False), doctest.DocTestParser()
    for number, block in enumerate(BLOCKS, 1):
        example = parser.get_doctest(block, session, f"block {number}", str(PAGE), 0)
        runner.run(example, clear_globs=False)
        session = example.globs
    tried = runner.summarize(verbose=False)
    assert tried.attempted > 20
    assert tried.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("equation", displayed() + inline())
def test_an_equation_is_well_formed(equation: str) -> None:
    MathTextParser("path").parse(f"${' '.join(equation.split())}$")


def test_markdown_leaves_the_equations_alone() -> None:
    # A backslash before punctuation is Markdown's own escape; a line may start a list or a heading, "}_" emphasis.
    assert [e for e in displayed() if re.search(r"\\[!-/:-@\[-`{-~]|^[-+=#>]|<[a-z]", e, re.MULTILINE)] == []
    assert [e for e in inline() if re.search(r"\\[!-/:-@\[-`{-~]|<[a-z]|}_|[*]", e)] == []
