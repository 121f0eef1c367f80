"""What the lab's charts say of a metric is what docs/ says of it, word for word, its formulas included."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grouprl.algorithms.named import NAMED
from grouprl.lab import report
from grouprl.record.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "run_directory.md").read_text(encoding="utf-8")
STATIC = Path(report.__file__).parent / "static"
SECTIONS = json.loads((STATIC / "sections.json").read_text(encoding="utf-8"))
UNITS = {"", "share", "s", "nats", "nats per token", "tokens", "tokens/s", "groups", "problems", "requests", "MiB"}


def table(heading: str) -> dict[str, str]:
    """The meaning of each key of the first table with keys under a heading, as its cell has it."""
    section = PAGE[PAGE.index(f"\n{heading}\n") :]
    rows = section[section.index("| key | meaning |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.fullmatch(r"\| (.+?) \| (.+) \|", row) for row in rows]
    assert all(cells), f"{heading}: expected rows of two cells"
    return {key: cell[2] for cell in cells if cell for key in re.findall(r"`([^`]+)`", cell[1])}


MEASURES = table("## evaluations.jsonl and summary.json")


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].held_out])
def test_a_measure_is_the_cell_of_its_table(name: str) -> None:
    assert METRICS[name].meaning == MEASURES[name.removeprefix("eval/")]


def test_definitions_make_sentences_that_stand_alone() -> None:
    for found in METRICS.values():
        assert found.unit in UNITS
        assert re.fullmatch(r"[A-Zp].*[^.;]", found.label)
        # It begins with what the metric is, and not in the middle of another sentence.
        assert re.match(r"[a-z1][\w'-]* ", found.meaning), found
        assert found.meaning.split()[0] not in {"of", "with", "for", "and", "that", "those", "these"}
        assert re.fullmatch(r"(when|above) .*[^.;]", found.worry), found  # after "Worry"


def test_every_section_is_of_some_metric_and_back() -> None:
    assert set(SECTIONS) == {metric.section for metric in METRICS.values() if metric.section}


GREEK = {
    "varepsilon": "\u03b5", "epsilon": "\u03b5", "mu": "\u03bc", "sigma": "\u03c3", "pi": "\u03c0", "theta": "\u03b8",
    "rho": "\u03c1", "delta": "\u03b4", "gamma": "\u03b3", "lambda": "\u03bb", "phi": "\u03c6", "beta": "\u03b2",
    "eta": "\u03b7", "tau": "\u03c4",
}  # fmt: skip
SIGNS = {
    "sum": "\u03a3", "leftarrow": "\u2190", "cdot": "\u00b7", "geq": "\u2265", "leq": "\u2264", "nabla": "\u2207",
    "left": "", "right": "", "min": "min", "max": "max", "log": "log",
}  # fmt: skip
TEX = GREEK | SIGNS


def written(tex: str) -> str:
    """A formula of docs/ as the lab writes it: letters and signs, `_` and `^` before what is set lower or higher."""
    text = re.sub(r"\\(?:mathrm|mathbf)\{([^{}]*)\}", lambda found: found[1].replace("\\ ", " "), tex)
    part = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
    text = re.sub(rf"(\\log )?\\frac{part}{part}(?=(\s*\\sum)?)", _fraction, text)
    text = (
        re.sub(r"\\([a-z]+)", lambda found: TEX.get(found[1], found[0]), text)
        .replace("\\ ", " ")
        .replace("-", "\u2212")
    )
    text = re.sub(r"_\{([^{},])\}", r"_\1", text)
    text = re.sub(r"([([])\s+|\s+([)\],])", r"\1\2", re.sub(r"\s+", " ", text))
    return text.strip()


def _fraction(found: re.Match[str]) -> str:
    """A fraction on one line: in brackets where it would be read together with what stands beside it."""
    several = re.compile(r"[-+ ]")
    above, below = (
        f"({part})" if several.search(re.sub(r"\{.*?\}", "", part.strip())) else part for part in (found[2], found[3])
    )
    return f"{found[1] or ''}({above} / {below})" if found[1] or found[4] else f"{above} / {below}"


def formulas(page: str) -> set[str]:
    """Every formula that a page sets apart, each part of it by itself."""
    set_apart = re.findall(r"^\$\$\n(.*?)\n\$\$", page, re.MULTILINE | re.DOTALL)
    return {
        written(part)
        for one in set_apart
        for part in re.split(r",\s*(?:\\ )?\\quad|\\quad\s*\\mathrm\{or\}\s*\\quad", one)
    }


def prose(page: str) -> str:
    """A page's text without marks, on one line."""
    text = re.sub(r"^> |^\$\$\n.*?\n\$\$", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$([^$]+)\$", lambda found: written(found[1]), text)
    text = re.sub(r"(?<![*\w])(\*{1,2})([^*\n]+?)\1(?![*\w])", r"\2", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    return re.sub(r"\s+", " ", text.replace("`", ""))


def letters(page: str) -> dict[str, str]:
    """The table of letters: what each stands for."""
    section = page[page.index("## Notation") : page.index("## 1. ")]
    rows = [re.split(r"\s*\|\s*", row.strip("| ")) for row in section.splitlines() if row.startswith("|")]
    pairs = [pair for row in rows for pair in (row[:2], row[3:5]) if len(pair) == 2 and "$" in pair[0]]
    return {written(" ".join(re.findall(r"\$([^$]+)\$", key))): prose(meaning) for key, meaning in pairs}


def test_formulas_are_read_as_they_are_written() -> None:
    assert written(r"A_i = \frac{r_i - \mu}{\sigma + \epsilon}") == "A_i = (r_i \u2212 \u03bc) / (\u03c3 + \u03b5)"
    assert written(r"w_{i,t} = \frac{1}{N T_i}") == "w_{i,t} = 1 / (N T_i)"
    assert written(r"\left( -S_{i,t} \right)") == "(\u2212S_{i,t})"
    assert written(r"\log \frac{\pi_{ref}(o_{i,t})}{\beta}") == "log (\u03c0_{ref}(o_{i,t}) / \u03b2)"


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_what_its_page_says(name: str) -> None:
    found = SECTIONS[name]
    assert set(found) <= {"page", "title", "text", "formulas", "letters"}
    page = (ROOT / "docs" / found["page"]).read_text(encoding="utf-8")
    assert found["text"]
    # Part of a sentence may stand for itself, with a capital letter and a full stop of its own.
    said = prose(page).lower()
    assert [sentence for sentence in found["text"] if sentence.rstrip(".").lower() not in said] == []
    algorithms = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert set(found.get("formulas", [])) <= formulas(algorithms)
    assert found.get("letters", {}).items() <= letters(algorithms).items()


def test_the_metrics_to_watch_of_every_algorithm_are_defined() -> None:
    """docs/algorithms.md names columns of metrics.jsonl under *Watch*: each has its chart's sentence here."""
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    watched = re.findall(r"^\*\*Watch\*\*: (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert len(watched) == len(NAMED) - 3, "expected a list for each algorithm but the three presets of libraries"
    names = {name for part in watched for name in re.findall(r"`([^`]+)`", part)}
    patterns = {name: re.sub(r"rewards/(?!soft_overlong)\w+/", "rewards/NAME/", name) for name in names}
    assert {"reward", "value_explained_variance", "rewards/equation_steps/mean"} <= names
    assert [name for name, pattern in patterns.items() if pattern not in METRICS] == []


def test_every_metric_that_a_chart_names_is_defined() -> None:
    charts = [chart for section in json.loads((STATIC / "charts.json").read_text()) for chart in section["charts"]]
    keys = {key for chart in charts for key in chart.get("lines", {})}
    assert {"reward", "kl", "curriculum/seen", "judge/cost"} <= keys
    assert keys <= set(METRICS)
