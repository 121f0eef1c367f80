"""The verb that reads what other libraries' configurations say: `import-config`, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.cli.words import app

if TYPE_CHECKING:
    from grouprl.imported.recipe import Imported

_STYLES = {"equal": "green", "changed": "yellow", "not needed": "dim", "unsupported": "red"}
_NEEDED = {"model": "--model PATH", "task": "--task FILE.jsonl", "reward": "--reward FILE.py:FUNCTION"}


@app.command("import-config")
def import_config(
    file: Annotated[Path, typer.Argument(help="TRL's YAML or JSON, verl's resolved YAML, or verl's shell script.")],
    output: Annotated[Path | None, typer.Option(help="The recipe; NAME.yaml, or NAME-grouprl.yaml beside it.")] = None,
    world: Annotated[int, typer.Option(min=1, help="Processes that train, which a TRL file does not say.")] = 1,
    allow: Annotated[list[str] | None, typer.Option(help="An unsupported key to leave out. Repeatable.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Make a recipe from a configuration of TRL or verl, and show what became of every key.

    Example: grouprl import-config grpo.yaml --world 4

    Example: grouprl import-config run_qwen.sh --output qwen.yaml --allow data.truncation
    """
    from grouprl.imported.read import read_foreign
    from grouprl.imported.recipe import import_foreign, write_recipe

    imported = import_foreign(read_foreign(file), world=world, allow=allow or ())
    target = output or Path(f"{file.stem}.yaml")
    if output is None and target.exists() and target.samefile(file):
        target = Path(f"{file.stem}-grouprl.yaml")
    write_recipe(imported, file.name, target, force=force)
    show_imported(imported)
    needed = "".join(f" {_NEEDED[one]}" for one in imported.missing)
    typer.echo(f"Wrote {target}. Run it: grouprl train {target}{needed}")


def show_imported(imported: Imported, console: Console | None = None) -> None:
    """Prints the table; a key in parentheses is a default there."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("key", "there", "verdict", "here", "why"):
        table.add_column(name, overflow="fold")  # a key that is cut off helps nobody
    for line in imported.lines:
        outcome = line.outcome
        here = ", ".join(f"{key}={_written(value)}" for key, value in outcome.ours.items())
        key = Text(line.key, "bold") if line.is_named else Text(f"({line.key})", "dim")
        verdict = Text(outcome.verdict, _STYLES[outcome.verdict])
        table.add_row(key, Text(_written(line.value)), verdict, Text(here), Text(outcome.words, "dim"))
    (console or Console()).print(table)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
