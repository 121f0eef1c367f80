"""The screen of `grouprl settings`: every key of a run with its default and its meaning."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.algorithms.option import about, hints
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import options, part_kinds, plain
from grouprl.config.run import RunConfig
from grouprl.types import unknown_name

Row = tuple[str, str, str]
"""Key, default, meaning, which begins with the choices of a key that has some."""


def show_settings(prefix: str = "", console: Console | None = None) -> None:
    """Prints the keys that begin with `prefix`.

    Raises:
        UserError: there is none.
    """
    rows = setting_rows()
    section = prefix.rstrip(".") + "." if prefix else ""
    matching = [row for row in rows if row[0] == prefix or row[0].startswith(section)]
    matching = matching or [row for row in rows if row[0].startswith(prefix)]
    if not matching:
        raise unknown_name("grouprl settings", prefix, {row[0].partition(".")[0] for row in rows})
    table = Table("key", "default", "meaning", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for key, default, meaning in matching:
        table.add_row(Text(key, "bold"), Text(default, "dim"), Text(meaning))
    (console or Console()).print(table)


def setting_rows() -> list[Row]:
    """Every key of a run."""
    return list(_of_section(RunConfig))


def _of_section(section: type[BaseModel], above: str = "") -> Iterator[Row]:
    for name, field in section.model_fields.items():
        key, default = f"{above}{name}", field.get_default(call_default_factory=True)
        inner = [kind for kind in (field.annotation, *typing.get_args(field.annotation)) if isinstance(kind, type)]
        if inner and inner[0] is Algorithm:
            yield from algorithm_rows(default, f"{key}.")
        elif inner and issubclass(inner[0], BaseModel):
            several = typing.get_origin(field.annotation) is tuple
            if several or default is None:
                yield key, _written(default), field.description or ""
            yield from _of_section(inner[0], f"{key}.0." if several else f"{key}.")
        else:
            shown = "" if field.is_required() else _written(default)
            yield key, shown, _meaning(field.description or "", [field.annotation])


def algorithm_rows(default: Algorithm, above: str = "") -> Iterator[Row]:
    """Every option of an algorithm, with its value there instead of the default."""
    yield f"{above}name", default.name, "grpo, dapo, ppo or another: docs/algorithms.md"
    values = options(default)
    for part, kinds in part_kinds(default).items():
        option_fields = {option.name: option for kind in reversed(kinds) for option in fields(kind)}
        off = kinds[0].absent if getattr(default, part) is None else {}
        for name, option in option_fields.items():
            value = values.get(name, off.get(name, option.default))
            types = [hints(kind)[name] for kind in kinds if name in hints(kind)]
            absent = [Literal[word] for word in (kinds[0].absent.get(name),) if isinstance(word, str)]
            owner = next(kind for kind in kinds if name in hints(kind))
            if len(set(types)) > 1:  # the first class that declares it describes it for all kinds of the part
                bases = (base for kind in kinds for base in reversed(kind.__mro__))
                owner = next(base for base in bases if name in vars(base).get("__annotations__", {}))
            yield f"{above}{name}", plain(value), _meaning(about(owner, name), [*absent, *types])


def _meaning(description: str, types: Iterable[Any]) -> str:
    """The description, after the choices that these types allow."""
    kinds = [kind for hint in types for kind in (hint, *typing.get_args(hint)) if typing.get_origin(kind) is Literal]
    choices = dict.fromkeys(choice for kind in kinds for choice in typing.get_args(kind))
    return f"{' | '.join(map(str, choices))}: {description}" if len(choices) > 1 else description


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)
