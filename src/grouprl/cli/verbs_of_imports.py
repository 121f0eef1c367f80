"""The verb that reads what other libraries' configurations say: `import-config`, and its table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from grouprl.cli.words import app

if TYPE_CHECKING:
    from grouprl.tools.imported.recipe import Imported, Line

_STYLES = {"unsupported": "red", "changed": "yellow", "equal": "green", "not needed": "cyan"}
_LONGEST = 60  # characters of a value in the table; the recipe has all of it
_NEEDED = {"model": "--model PATH", "task": "--task FILE.jsonl", "reward": "--reward FILE.py:FUNCTION"}


@app.command("import-config")
def import_config(
    file: Annotated[str, typer.Argument(help="TRL's YAML or JSON, or verl's YAML; or verl's overrides, pasted here.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE of that library, in place of the file's.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The recipe; NAME.yaml, or NAME-grouprl.yaml beside it.")] = None,
    world: Annotated[int, typer.Option(min=1, help="Processes that train, which a TRL file does not say.")] = 1,
    trl: Annotated[str | None, typer.Option(help="The release of TRL that the file is for, such as 0.14.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="An unsupported key to leave out. Repeatable.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Make a recipe from a configuration of TRL or verl, and show what became of every key.

    Example: grouprl import-config grpo.yaml --world 4 --trl 0.14

    Example: grouprl import-config --output qwen.yaml algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8
    """
    from grouprl.tools.imported.read import read_foreign
    from grouprl.tools.imported.recipe import import_foreign, write_recipe

    place = None if "=" in file and not os.path.exists(file) else Path(file)
    foreign = read_foreign(place, [*([] if place else [file]), *(changes or ())])
    imported = import_foreign(foreign, world=world, allow=allow or (), version=trl)
    target = output or Path(f"{place.stem if place else 'verl'}.yaml")
    if output is None and place is not None and target.exists() and target.samefile(place):
        target = Path(f"{place.stem}-grouprl.yaml")
    write_recipe(imported, place.name if place else "overrides of verl", target, force=force)
    show_imported(imported)
    needed = "".join(f" {_NEEDED[one]}" for one in imported.missing)
    typer.echo(f"Wrote {target}. Run it: grouprl train {target}{needed}")


def show_imported(imported: Imported, console: Console | None = None) -> None:
    """Prints every key under its verdict; a key in parentheses is a default there that is another here."""
    console = console or Console()
    for verdict, style in _STYLES.items():
        lines = [line for line in imported.lines if line.outcome.verdict == verdict]
        if not lines:
            continue
        heading = f"{verdict}: {len(lines)} {'key' if len(lines) == 1 else 'keys'}"
        console.print(Text(heading + (", skipped" if verdict == "unsupported" else ""), f"bold {style}"))
        if verdict == "not needed":
            reasons = dict.fromkeys(line.outcome.words for line in lines)
            for reason in reasons:
                console.print(Padding(Text(reason, "dim"), (0, 0, 0, 2), expand=False))
                keys = [_there(line) for line in lines if line.outcome.words == reason]
                console.print(Padding(Text(", ", overflow="fold").join(keys), (0, 0, 0, 6), expand=False))
            continue
        for line in lines:
            here = ", ".join(f"{key}={_shown(value)}" for key, value in line.outcome.ours.items())
            words = Text(f" -> {here}" if here else "")
            if line.outcome.words:
                words.append(f" ({line.outcome.words})", "dim")
            console.print(Padding(_there(line) + words, (0, 0, 0, 2), expand=False))
    if any(not line.is_named for line in imported.lines):
        console.print(Text("(KEY): a default of that library, which the file does not name", "dim"))


def _there(line: Line) -> Text:
    text = f"{line.key}={_shown(getattr(line.value, 'text', line.value))}"
    return Text(text if line.is_named else f"({text})", overflow="fold")


def _shown(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
