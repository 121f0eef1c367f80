"""The built-in tasks by name; each is one short file and one line of leaves.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from grouprl.files import DATA_KINDS
from grouprl.leaves import LeafNames
from grouprl.tasks.answers import Format, with_format
from grouprl.tasks.base import Task
from grouprl.tasks.examples import with_examples
from grouprl.tasks.mixture import Mixture, MixturePart
from grouprl.tasks.rows import Jsonl
from grouprl.types import UserError, unknown_name

TASKS = LeafNames("task", {"jsonl": Jsonl, "mixture": Mixture})
"""The classes of the built-in tasks: files and mixtures, and those of leaves (word_problems, reasoning_gym:NAME)."""

_GYM = "reasoning_gym"
_MIXTURE = "mixture"


def load_task(
    name: str,
    *,
    path: str | None = None,
    difficulty: int | None = None,
    train_problems: int | None = None,
    eval_problems: int | None = None,
    seed: int = 0,
    system_prompt: str | None = None,
    format: Format = "boxed",  # noqa: A002  as in a configuration
    examples: int | str = 0,
    arguments: Mapping[str, Any] | None = None,
) -> Task:
    """The task of this name, with its options, in this format and with these worked examples.

    None takes the task's default. A task without random problems ignores `seed`. `arguments` are settings of this task
    alone: the other fields of its class, the arguments of the generator of `reasoning_gym:NAME`, or the parts of
    `mixture`: see `_part`.

    Raises UserError for an unknown name, for an option that the task does not have, and for a setting out of range.
    """
    kind, _, data_set = name.partition(":")
    is_file = re.search(r"\.[A-Za-z]\w*$", name)
    if is_file or re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        remedy = "convert it to .csv" if is_file else f"for a data set of the Hugging Face hub write hub:{name}"
        raise UserError(
            f"task.name: expected a task's name, a folder, or a file that ends in {', '.join(DATA_KINDS)}, got "
            f"{name!r}: {remedy}"
        )
    if kind not in TASKS and Path(name).is_dir():
        raise UserError(
            f"task.name: expected a folder with data files ({', '.join(DATA_KINDS)}), got none in {name}: "
            "check the path"
        )
    if kind not in TASKS or (data_set and kind != _GYM):
        raise unknown_name("task.name", name, TASKS)
    if name == _GYM:
        raise UserError(
            f"task.name: expected {_GYM}:NAME, such as {_GYM}:spell_backward, got {_GYM}: `grouprl tasks {_GYM}` lists "
            "the names"
        )
    option_names = {field.name for field in fields(TASKS[kind])}
    common = {
        "path": path,
        "difficulty": difficulty,
        "train_problems": train_problems,
        "eval_problems": eval_problems,
        "seed": seed if "seed" in option_names else None,
    }
    options: dict[str, Any] = {key: value for key, value in common.items() if value is not None}
    for option in options.keys() - option_names:
        raise UserError(
            f"task.{option}: the task {name} has no such option, only {', '.join(sorted(option_names))}: remove it"
        )
    if kind == _MIXTURE:
        shared = {"seed": seed, "system_prompt": system_prompt, "format": format, "examples": examples}
        parts = {label: _part(label, part, shared) for label, part in (arguments or {}).items()}
        return Mixture(parts) if parts else Mixture()
    if kind == _GYM:
        options |= {"dataset": data_set, "arguments": arguments or {}}
    else:
        argument_names = option_names - common.keys()
        for argument, value in (arguments or {}).items():
            if not argument_names:
                raise UserError(f"task.arguments: the task {name} has none, got {argument!r}: remove it")
            if argument not in argument_names:
                raise unknown_name("task.arguments", argument, argument_names)
            options[argument] = value
    return with_examples(with_format(TASKS[kind](**options), format, system_prompt), examples)


def _part(label: str, part: Any, shared: Mapping[str, Any]) -> MixturePart:
    """A part of a mixture from its ratio, or from `ratio` and the settings of a task, whose name is by default `label`.

    Settings that it lacks are those of the mixture.
    """
    # pydantic takes the workers of rewards 0.1 s; the configuration loads torch, which a list of tasks does not need
    from pydantic import ValidationError

    from grouprl.config.run import TaskConfig

    settings = dict(part) if isinstance(part, Mapping) else {"ratio": part}
    ratio = settings.pop("ratio", 1)
    where = f"task.arguments.{label}"
    for key in settings.keys() - TaskConfig.model_fields.keys():
        raise unknown_name(where, key, ("ratio", *TaskConfig.model_fields))
    try:
        config = TaskConfig(**{**shared, "name": label, **settings})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, (where, *first["loc"])))
        raise UserError(f"{key}: expected another value, got {first['input']!r}: {first['msg']}") from error
    if config.name == _MIXTURE:
        raise UserError(f"{where}: expected a task, got a mixture: name the parts of it here")
    try:
        return MixturePart(load_task(**config.model_dump()), ratio)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
