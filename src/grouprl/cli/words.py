"""The application, the options that verbs share, and the entry point."""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer
from rich.console import Console

from grouprl import __version__
from grouprl.cli import completion
from grouprl.config.code_files import errors_of_code
from grouprl.config.command_line import is_change
from grouprl.leaves import leaf
from grouprl.models.names import check_name, is_gguf
from grouprl.record.layout import RunDirectory, is_config_of_a_run, model_at, refuse_links, run_at, run_of_checkpoint
from grouprl.types import UserError

if TYPE_CHECKING:
    from grouprl.config.run import RunConfig
    from grouprl.supervised.settings import DpoConfig, RewardModelConfig, SftConfig

Config = TypeVar("Config", "RunConfig", "SftConfig", "DpoConfig", "RewardModelConfig")

Arguments = ParamSpec("Arguments")

# An option that a verb does not have is left to `config_of`, which says what setting it may be.
ANY_OPTION = {"ignore_unknown_options": True}

app = typer.Typer(
    help="Critic-free reinforcement learning for language models.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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


def _no_option(path: object) -> str:
    """Refuses an option that a verb does not have where a run or a model is expected."""
    if str(path).startswith("-"):
        raise UserError(f"{path}: expected an option that --help lists; a setting has no dashes: KEY=VALUE")
    return str(path)


RunArgument = Annotated[
    Path,
    typer.Argument(
        help="Run directory, such as runs/demo.",
        autocompletion=completion.runs,
        callback=lambda path: run_at(_no_option(path)),
    ),
]
RunOrFolderArgument = Annotated[
    Path,
    typer.Argument(
        help="Run directory, such as runs/demo; with --site a folder of runs.",
        autocompletion=completion.runs,
        callback=lambda path: Path(_no_option(path)),
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Run or checkpoint folder, built-in name or hub id.",
        autocompletion=completion.models,
        callback=lambda path: model_at(_no_option(path)),
    ),
]
RewardOption = Annotated[
    list[str] | None, typer.Option("--reward", help="A name, or FILE.py:FUNCTION; =WEIGHT may follow. Repeatable.")
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option("--trust-code", help="A code file, or a server, that a run's config.yaml names. Repeatable."),
]


def _show_version(is_asked: bool) -> None:
    if is_asked:
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
    settings: Sequence[str] | None,
    options: Mapping[str, object] | None = None,
    *,
    trust: Sequence[str] | None = None,
    loads_model: bool = True,
) -> RunConfig:
    """The configuration of a run; see `config_of`. This loads torch, which `--help` does not need (1.2 s).

    Without `loads_model` the name of a model may be one that is not on this machine, and no network is needed.

    Raises:
        UserError: also for code that comes from somebody else's run and not from `trust`; see `refuse_foreign_code`.
    """
    if loads_model:
        check_models(settings, options)
    from grouprl.config.own_algorithm import is_in_file, load_algorithm
    from grouprl.config.run import RunConfig, load_config

    words = [(text, RunDirectory(text)) for text in settings or []]  # the folder of a run stands for its configuration
    settings = [str(run.config) if not is_change(text) and run.exists else text for text, run in words]
    of_runs = [Path(text) for text in settings if is_config_of_a_run(Path(text))]
    for file in of_runs:
        refuse_links(file.parent)
    config = configured(RunConfig, settings, options)
    if of_runs:
        leaf("received.trust").refuse_foreign_code(config, of_runs, trust or ())
    if is_in_file(config.algorithm.name):
        load_algorithm(config.algorithm.name)
        config = configured(RunConfig, settings, options)
    if not of_runs or any(text.startswith("runs_dir=") for text in settings):
        return config
    run = of_runs[-1].parent
    if config.runs_dir == load_config(RunConfig, [of_runs[-1]], []).runs_dir:
        # Where its first user kept it says nothing here, and could be any folder of this user.
        folder = run.parent if run.name not in ("", "..") else run.absolute().parent
        config = config.model_copy(update={"runs_dir": str(folder)})
    return config


def configured(
    kind: type[Config], settings: Sequence[str] | None, options: Mapping[str, object] | None = None
) -> Config:
    """Builds a configuration from command-line arguments; a run in the place of a model is its newest checkpoint."""
    from grouprl.config.command_line import config_of

    check_words(kind, settings or [])
    config = config_of(kind, settings, options)
    path = model_at(config.model.path)
    if is_gguf(path):
        from grouprl.tools.gguf import import_gguf

        typer.echo(f"{path}: its weights are read once, into {Path(path).with_suffix('')}.")
        path = str(import_gguf(Path(path)))
    model = config.model.model_copy(update={"path": path})
    return config.model_copy(update={"model": model})


def check_words(kind: type[Config], settings: Sequence[str]) -> None:
    """Refuses words among the settings that are no file, no recipe and no KEY=VALUE, and says what was meant.

    Raises:
        UserError: spaces around =, a missing =, a model or a task without its option, a run or a folder.
    """
    from grouprl.config.files import advice
    from grouprl.models.names import BUNDLED
    from grouprl.tasks.named import TASKS

    for at, text in enumerate(settings):
        after = settings[at + 1] if at + 1 < len(settings) else ""
        spaced = text.endswith("=") and after and "=" not in after and not is_settings_file(after)
        if text.startswith("=") or spaced:
            key = settings[at - 1] if text.startswith("=") and at else ""
            value = text.strip("=") if text.strip("=") and not spaced else after
            raise UserError(f"{text}: expected KEY=VALUE without spaces: write {key or text[:-1]}={value or 'VALUE'}")
        if "=" in text or after.startswith("=") or text.startswith("-") or is_settings_file(text):
            continue
        section = text.partition(".")[0] in kind.model_fields
        if section and (not advice(kind, text) or "." in text):
            raise UserError(f"{text}: expected KEY=VALUE, got no =: write {text}={after or 'VALUE'}")
        for option, names in {"--model": BUNDLED, "--task": TASKS}.items():
            if text in names:
                raise UserError(f"{text}: expected a recipe, a file or KEY=VALUE, got a name: write {option} {text}")
        expected = f"{text}: expected a recipe, a file or KEY=VALUE, got"
        if ".py:" in text:
            raise UserError(f"{expected} code: write --reward {text}, or algorithm={text}")
        if "/" in text or Path(text).is_dir():
            raise UserError(
                f"{expected} {'a folder that is no run' if Path(text).is_dir() else 'no such file'}: a run is resumed "
                "with --resume, a model is given with --model, data with --task"
            )
        key = advice(kind, text).removeprefix("did you mean ").removesuffix("?")
        if key.endswith(f".{text}"):
            raise UserError(f"{expected} no =: write {key}={after or 'VALUE'}")


def is_settings_file(text: str) -> bool:
    """Whether a word names a file or a recipe."""
    from grouprl.config.command_line import RECIPES

    return Path(text).suffix in (".yaml", ".yml", ".json") or any(
        path.is_file() for path in (Path(text).expanduser(), RECIPES / f"{text}.yaml")
    )


def check_models(settings: Sequence[str] | None, options: Mapping[str, object] | None = None) -> None:
    """Checks the model that a command line names, before anything is loaded.

    Raises:
        UserError: there is no such model.
    """
    changes = (text.partition("=") for text in settings or [])
    named = [value for key, _, value in changes if key in ("model", "model.path") and not value.startswith("{")]
    for model in (*named, (options or {}).get("model.path")):
        if model is not None:
            check_name(model_at(str(model)))


def settings_of_run(checkpoint: str) -> list[str]:
    """Returns the settings of the run that contains a checkpoint, if there is one; a checkpoint has its template."""
    run = run_of_checkpoint(Path(checkpoint))
    if run is not None:
        refuse_links(run.path)
    return [] if run is None else [str(run.config), "model.chat_template=null", "model.revision=null"]


def place_of_run(settings: Sequence[str] | None) -> dict[str, object]:
    """Returns the name and the parent of the run directory among the settings, where `--resume` continues it."""
    runs = [RunDirectory(text).path for text in settings or [] if not is_change(text) and RunDirectory(text).exists]
    return {"name": runs[-1].resolve().name, "runs_dir": str(runs[-1].parent)} if runs else {}


def suggest(*commands: str) -> None:
    """Prints the commands that a user may want next, as the last line of a verb."""
    typer.echo(f"Try: {', '.join(commands)}")


def again(verb: str, settings: Sequence[str] | None, options: Mapping[str, str | None]) -> str:
    """Writes the command of another verb with the same settings and options."""
    words = [word for option, value in options.items() if value is not None for word in (option, value)]
    return shlex.join(["grouprl", verb, *(settings or []), *words])


def watched(verb: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Ends a verb that makes no progress, see `grouprl.cli.watchdog`."""

    @wraps(verb)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        from grouprl.cli.watchdog import end_when_stalled, stall_seconds

        with end_when_stalled(stall_seconds()):
            verb(*args, **kwargs)

    return run


def main() -> None:
    """The entry point: an error of the user or the machine is one message and code 2, a diverged run has code 1."""
    for number in range(3):  # a standard stream that is closed: else a run's file would get its number
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for as long as the process
    if sys.argv[1:2] == ["help"]:
        sys.argv[1:] = [*sys.argv[2:], "--help"]
    elif sys.argv[1:2] == ["version"]:
        sys.argv[1:] = ["--version"]
    try:
        with errors_of_code():
            app(prog_name="grouprl")
    except (
        *(UserError, FloatingPointError, OSError, sqlite3.Error, MemoryError, RuntimeError, ModuleNotFoundError),
    ) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("grouprl."):
            raise
        text = str(error) if isinstance(error, UserError | FloatingPointError) else _of_the_machine(error)
        is_reported = os.environ.get("WORLD_SIZE", "1") == "1"
        if not is_reported:
            from grouprl.ranks import may_report  # loads torch

            is_reported = may_report()
        if is_reported:
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {text}", markup=False)
        sys.exit(1 if isinstance(error, FloatingPointError) else 2)


def _of_the_machine(error: Exception) -> str:
    """A sentence about a full disk, a folder that cannot be written, a damaged or locked database."""
    match error:
        case OSError(filename=str() | Path() as path):
            return f"{path}: {error.strerror}: check permissions and space there; continue with --resume"
        case OSError():
            return f"{error}: check the disk and the limits of this machine; continue with --resume"
        case ModuleNotFoundError():
            folder = "/".join(str(error.name).split(".")[:2])
            return f"expected the folder {folder}, got an installation without it: install all of grouprl"
        case RuntimeError():
            return "no thread is left for this user: end other programs, or raise `ulimit -u`; continue with --resume"
        case sqlite3.OperationalError() if "locked" in str(error):
            return "the database of the run: locked by another program: end that program, then continue with --resume"
        case sqlite3.Error():
            return f"the database of the run: {error}: restore it from a copy, or start a new run under another name"
        case _:
            return "not enough memory: lower rollout.max_rows, rollout.max_tokens or learner.micro_batch_tokens"
