"""What the site has from code: every setting, command and Python name, the packages, and a page of each algorithm."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

import staging
from grouprl.algorithms.named import NAMED, source
from grouprl.cli import app
from grouprl.cli.settings import algorithm_rows, setting_rows

# What a caller in Python may rely on: the names in `__all__` of these.
PYTHON = {
    "grouprl": "Training",
    "grouprl.algorithms": "Algorithms as functions",
    "grouprl.evaluation": "Evaluation",
}
READING = ("read_run", "RecordedRun", "read_rollouts", "RecordedGroup")
SECTION = re.compile(r"^### (.+?)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)


def with_generated(root: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """The pages of the site: those that were written, completed by what code says."""
    return {
        **texts,
        "algorithms.md": SECTION.sub(_lead, texts["algorithms.md"]),
        "commands.md": f"{texts['commands.md']}\n{_commands()}",
        "architecture.md": f"{texts['architecture.md']}\n{_packages(root / 'src/grouprl')}",
        "configuration.md": _configuration(),
        "python.md": _python(root),
        **_algorithms(root),
    }


def navigation(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of docs/README.md; the group Reference begins with the pages that are made here."""
    own = ["configuration.md", "python.md", {"Algorithms by name": [f"algorithms/{name}.md" for name in NAMED]}]
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
    # Without the list of commands, which the page begins with.
    verbs = made[made.index("\n## ") :]
    return "\n## Options of every command\n" + re.sub(r"^(#+) ", r"#\1 ", verbs, flags=re.MULTILINE)


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


def _algorithms(root: Path) -> dict[str, str]:
    page = root / staging.ALGORITHMS
    bodies = {
        name: body
        for heading, body in SECTION.findall(page.read_text(encoding="utf-8"))
        for name in heading.split(", ")
    }
    found = {}
    for name in NAMED:
        place = f"algorithms/{name}.md"
        body = staging.relinked(root, page, bodies[name], place)
        found[place] = (
            f"# {name}\n\n{body.strip()}\n\n## Every option\n\n{_options(name)}\n\n## As code\n\n{_code(root, name)}\n"
        )
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


def _code(root: Path, name: str) -> str:
    path = f"src/grouprl/algorithms/named/{name}.py"
    code = (root / path).read_text(encoding="utf-8").rstrip()
    return f'{source(name).splitlines()[0]}\n\n```python title="{path}"\n{code}\n```'


def _lead(found: re.Match[str]) -> str:
    """Of an algorithm's section its first paragraph, and links to the pages that have the rest."""
    names = found[1].split(", ")
    if not set(names) <= set(NAMED):
        return found[0]
    lead = found[2].strip().partition("\n\n")[0]
    return (
        f"### {found[1]}\n\n{lead}\n\n"
        + ", ".join(f"[{name}: equation, fields, pitfalls](algorithms/{name}.md)" for name in names)
        + "\n\n"
    )
