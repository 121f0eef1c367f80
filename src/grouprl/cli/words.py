"""The application, the options that verbs share, and the entry point."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer
from rich.console import Console

from grouprl import __version__
from grouprl.cli import completion
from grouprl.models.names import check_name
from grouprl.record.layout import RunDirectory, is_config_of_a_run, refuse_links, run_of_checkpoint
from grouprl.types import UserError

if TYPE_CHECKING:
    from grouprl.config.run import RunConfig

Arguments = ParamSpec("Arguments")

app = typer.Typer(
    help="Critic-free reinforcement learning for language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Configuration files, names of built-in recipes, and changes such as rollout.group_size=16.",
        autocompletion=completion.settings,
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Built-in name, folder or hub id.", autocompletion=completion.models)
]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", help="A task of `grouprl tasks`, or a data file.", autocompletion=completion.tasks),
]
RunArgument = Annotated[Path, typer.Argument(help="Run directory, such as runs/demo.", autocompletion=completion.runs)]
RewardOption = Annotated[
    list[str] | None, typer.Option("--reward", help="A name, or FILE.py:FUNCTION; =WEIGHT may follow. Repeatable.")
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option("--trust-code", help="A code file, or a server, that a run's config.yaml names. Repeatable."),
]


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"grouprl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Critic-free reinforcement learning for language models."""


def run_config(
    settings: Sequence[str] | None, options: Mapping[str, object] | None = None, *, trust: Sequence[str] | None = None
) -> RunConfig:
    """The configuration of a run; see `config_of`. This loads torch, which `--help` does not need (1.2 s).

    Raises:
        UserError: also for code that comes from somebody else's run and not from `trust`; see `refuse_foreign_code`.
    """
    check_models(settings, options)
    from grouprl.config.command_line import config_of, settings_file
    from grouprl.config.run import RunConfig
    from grouprl.run.trust import refuse_foreign_code

    files = [settings_file(text) for text in settings or [] if "=" not in text]
    for file in filter(is_config_of_a_run, files):
        refuse_links(file.parent)
    config = config_of(RunConfig, settings, options)
    refuse_foreign_code(config, files, trust or ())
    return config


def check_models(settings: Sequence[str] | None, options: Mapping[str, object] | None = None) -> None:
    """Checks the model that a command line names, before anything is loaded.

    Raises:
        UserError: there is no such model.
    """
    changes = (text.partition("=") for text in settings or [])
    named = [value for key, _, value in changes if key in ("model", "model.path") and not value.startswith("{")]
    for model in (*named, (options or {}).get("model.path")):
        if model is not None:
            check_name(str(model))


def newest_model(model: str) -> str:
    """The newest checkpoint where a run is named; any other model as it is."""
    run = RunDirectory(Path(model))
    if not run.exists:
        return model
    refuse_links(run.path)
    checkpoints = run.checkpoints()
    if not checkpoints:
        raise UserError(f"{model}: expected a run with a checkpoint, got one without: continue it with --resume")
    return str(checkpoints[-1].path)


def settings_of_run(checkpoint: str) -> list[str]:
    """Returns the settings of the run that contains a checkpoint, if there is one; a checkpoint has its template."""
    run = run_of_checkpoint(Path(checkpoint))
    if run is not None:
        refuse_links(run.path)
    return [] if run is None else [str(run.config), "model.chat_template=null", "model.revision=null"]


def watched(verb: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Ends a verb that makes no progress, see `grouprl.run.watchdog`."""

    @wraps(verb)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        from grouprl.run.watchdog import end_when_stalled, stall_seconds

        with end_when_stalled(stall_seconds()):
            verb(*args, **kwargs)

    return run


def main() -> None:
    """The entry point: an error of the user or the machine is one message and code 2, a diverged run has code 1."""
    _open_standard_streams()
    try:
        app()
    except (UserError, FloatingPointError, OSError, sqlite3.Error, MemoryError) as error:
        text = str(error) if isinstance(error, UserError | FloatingPointError) else _of_the_machine(error)
        if _reports():
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {text}", markup=False)
        sys.exit(1 if isinstance(error, FloatingPointError) else 2)


def _reports() -> bool:
    """Whether this process shows its error; see `may_report`, which loads torch."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    from grouprl.distributed import may_report

    return may_report()


def _open_standard_streams() -> None:
    """Opens nothing in the place of a standard stream that is closed: else a run's file would get its number."""
    for number in range(3):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for as long as the process


def _of_the_machine(error: Exception) -> str:
    """A sentence about a full disk, a folder that cannot be written, a damaged or locked database."""
    match error:
        case OSError(filename=str() | Path() as place):
            return f"{place}: {error.strerror}: check permissions and space there; continue with --resume"
        case OSError():
            return f"{error}: check the disk and the limits of this machine; continue with --resume"
        case sqlite3.OperationalError() if "locked" in str(error):
            return "the database of the run: locked by another program: end that program, then continue with --resume"
        case sqlite3.Error():
            return f"the database of the run: {error}: restore it from a copy, or start a new run under another name"
        case _:
            return "not enough memory: lower rollout.max_rows, rollout.max_tokens or learner.micro_batch_tokens"
