"""The verbs that list what there is: tasks, settings, and what this machine can run."""

from __future__ import annotations

from typing import Annotated

import typer

from grouprl.cli import completion
from grouprl.cli.words import ModelOption, app


@app.command()
def tasks(
    name: Annotated[
        str | None, typer.Argument(help="One task, with examples.", autocompletion=completion.tasks)
    ] = None,
) -> None:
    """List the tasks: their problems, verifiers and an example of each.

    Example: grouprl tasks countdown
    """
    from grouprl.cli.listing import show_tasks

    show_tasks(name)


@app.command()
def settings(
    prefix: Annotated[
        str,
        typer.Argument(help="A section or the beginning of a key, such as rollout.", autocompletion=completion.keys),
    ] = "",
) -> None:
    """List the settings of a run: key, default, meaning.

    Example: grouprl settings rollout
    """
    from grouprl.cli.settings import show_settings

    show_settings(prefix)


@app.command()
def doctor(
    model: ModelOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Show what this machine can run: devices and their speed, kernels, sandbox, extras, versions, memory and disk.

    With a model, how many tokens a second it samples and learns from here; `grouprl plan RECIPE` gives minutes.

    Example: grouprl doctor

    Example: grouprl doctor --model smollm2
    """
    from grouprl.tools.planner.doctor import show_doctor

    show_doctor(model, as_json=as_json)
