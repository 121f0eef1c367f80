"""What the site has from code: settings, commands, metrics, keys, Python names, and the options of each algorithm."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from grouprl.algorithms.named import NAMED, source
from grouprl.cli import app
from grouprl.cli.settings import algorithm_rows, setting_rows
from grouprl.record.metrics import METRICS
from grouprl.tools.imported.keys import NOT_NEEDED, TRL, VERL
from grouprl.tools.imported.table import Entry

# What a caller in Python may rely on: the names in `__all__` of these.
PYTHON = {
    "grouprl": "Training",
    "grouprl.algorithms": "Algorithms as functions",
    "grouprl.evaluation": "Evaluation",
}
READING = ("read_run", "RecordedRun", "read_rollouts", "RecordedGroup")


def with_generated(root: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """The pages of the site: those that were written, completed by what code says."""
    return {
        **texts,
        "architecture.md": f"{texts['architecture.md']}\n{_packages(root / 'src/grouprl')}",
        "commands.md": _commands(),
        "configuration.md": _configuration(),
        "metrics.md": f"# Metrics\n\n## metrics.jsonl\n\n{_metrics(held_out=False)}\n"
        f"## Evaluations\n\n{_metrics(held_out=True)}",
        "python.md": _python(root),
        **_keys(),
        **_algorithms(root, texts),
    }


def navigation(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of docs/README.md; the group Reference begins with the pages that are made here."""
    own = [
        *("configuration.md", "commands.md", "metrics.md", "python.md"),
        {"Algorithms by name": [f"algorithms/{name}.md" for name in (*NAMED, "options", "numbers")]},
        {"Keys of other trainers": ["keys/trl.md", "keys/verl.md", "keys/openrlhf.md"]},
    ]
    return [
        {title: own + pages if title == "Reference" else pages for title, pages in group.items()} for group in groups
    ]


def _configuration() -> str:
    rows = setting_rows()
    sections = {key.partition(".")[0] for key, _, _ in rows if "." in key}
    tables: dict[str, list[str]] = {}
    for key, default, about in rows:
        section = key.partition(".")[0]
        row = f"| `{key}` | {f'`{_cell(default)}`' if default else ''} | {_cell(about)} |"
        tables.setdefault(section if section in sections else "The run", []).append(row)
    parts = ["# Configuration\n\nEvery setting of a run, as `grouprl settings` lists them.\n"]
    for section, lines in tables.items():
        parts.append("\n".join((f"## {section}\n", "| key | default | meaning |", "|---|---|---|", *lines, "")))
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _commands() -> str:
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="grouprl")
    made = get_docs_for_click(obj=command, ctx=context, name="grouprl")
    verbs = made[made.index("\n## ") :]
    return f"# Commands\n\n`grouprl VERB --help` shows the same; `python -m grouprl` is the same program.\n{verbs}"


def _metrics(*, held_out: bool) -> str:
    """A table; metrics with one meaning share a row."""
    rows = "| key | meaning | formula | unit | TRL's name |\n|---|---|---|---|---|\n"
    metrics = [metric for metric in METRICS.values() if metric.held_out == held_out]
    for meaning, members in groupby(metrics, key=lambda metric: metric.meaning):
        told = [(f"`{one.name}`", _code(one.formula), one.unit, _code(one.trl)) for one in members]
        names, formulas, units, theirs = (
            ", ".join(dict.fromkeys(filter(None, cells))) for cells in zip(*told, strict=True)
        )
        rows += f"| {names} | {meaning} | {formulas} | {units} | {theirs} |\n"
    return rows


def _code(text: str) -> str:
    """As code in a cell, where an unescaped vertical bar would end the cell."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def _keys() -> dict[str, str]:
    stars = "\n".join(f"| `{pattern}` | {why} |" for pattern, why in NOT_NEEDED.items())
    more = f"Not needed, with a star for every key below:\n\n| key | why |\n|---|---|\n{stars}\n"
    return {
        "keys/trl.md": f"# Keys of TRL\n\n{_key_table(TRL)}",
        "keys/verl.md": f"# Keys of verl\n\n{_key_table(VERL)}\n{more}",
    }


def _packages(package: Path) -> str:
    parts = ["## Packages\n"]
    for init in sorted(package.glob("*/__init__.py")):
        told = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        parts.append(f"### {init.parent.name}\n\n{told}\n")
    return "\n".join(parts)


def _python(root: Path) -> str:
    parts = ["# Python\n\nWhat `import grouprl` offers; other names may change between versions.\n"]
    for module, title in PYTHON.items():
        tree = ast.parse((root / "src" / module.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
        parts.append(f"## {title}\n")
        parts.extend(f"::: {origin}\n" for origin in _origins(module, tree))
    parts.append("## Reading a run\n")
    parts.extend(f"::: grouprl.record.read.{name}\n" for name in READING)
    return "\n".join(parts)


def _origins(module: str, tree: ast.Module) -> list[str]:
    """Where the names in a module's `__all__` are defined."""
    defined = {
        name.name: f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
    (named,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and _names(node) == ["__all__"]
    )
    return [defined.get(name, f"{module}.{name}") for name in named]


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _algorithms(root: Path, texts: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name in NAMED:
        place = f"algorithms/{name}.md"
        body = texts.get(place, f"# {name}\n\n[The family](../algorithms.md#the-family-by-name)")
        found[place] = f"{body.strip()}\n\n## Every option\n\n{_options(name)}\n\n## As code\n\n{_file(root, name)}\n"
    return found


def _options(name: str) -> str:
    base = {key: value for key, value, _ in algorithm_rows(NAMED["grpo"])}
    lines = ["| option | value | in `grpo` | meaning |", "|---|---|---|---|"]
    for key, value, about in algorithm_rows(NAMED[name]):
        other = base.get(key)
        lines.append(
            f"| `{key}` | `{value}` | {'' if other == value else f'`{other}`' if other else '-'} | {_cell(about)} |"
        )
    return "\n".join(lines)


def _key_table(entries: Mapping[str, Entry]) -> str:
    """Key, default there, what it is here."""
    rows = [f"| `{key}` | `{json.dumps(entry.default)}` | {entry.here} |" for key, entry in entries.items()]
    return "\n".join(["| key | default there | here |", "|---|---|---|", *rows]) + "\n"


def _file(root: Path, name: str) -> str:
    path = f"src/grouprl/algorithms/named/{name}.py"
    code = (root / path).read_text(encoding="utf-8").rstrip()
    return f'{source(name).splitlines()[0]}\n\n```python title="{path}"\n{code}\n```'
