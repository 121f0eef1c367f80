"""From the words of a command line to a configuration: files, names of recipes, changes, options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from grouprl.config.files import load_config
from grouprl.types import UserError, unknown_name

RECIPES = Path(__file__).parents[1] / "recipes"
"""The folder of the built-in recipes."""

_Config = TypeVar("_Config", bound=BaseModel)


def config_of(
    kind: type[_Config], settings: Sequence[str] | None, options: Mapping[str, object] | None = None
) -> _Config:
    """A configuration from what was given.

    Args:
        kind: of the configuration.
        settings: files, names of built-in recipes, and changes such as steps=10.
        options: values by dotted key, None = not given; they come last.

    Raises:
        UserError: with every mistake.
    """
    given = settings or []
    files = [settings_file(text) for text in given if "=" not in text]
    changes = [text for text in given if "=" in text]
    # As JSON: --name 007 is a name, and a path may hold anything.
    changes += [f"{key}={json.dumps(value)}" for key, value in (options or {}).items() if value is not None]
    return load_config(kind, files, changes)


def settings_file(text: str) -> Path:
    """The file that a word names: a path, or the name of a built-in recipe.

    Raises:
        UserError: it is neither.
    """
    path, built_in = Path(text), RECIPES / f"{text}.yaml"
    if path.is_file() or path.suffix:
        return path
    if not built_in.is_file():
        recipes = {recipe.stem: recipe for recipe in RECIPES.glob("*.yaml")}
        raise unknown_name("settings (a file, a bundled recipe or a change such as steps=10)", text, recipes)
    return built_in


def reward_settings(given: Sequence[str] | None) -> list[dict[str, object]] | None:
    """NAME, NAME=0.5, FILE.py:FUNCTION or FILE.py:FUNCTION=0.5, as a configuration has it; None when none is given.

    >>> reward_settings(["correct_answer", "mine.py:short=0.2"])[1]
    {'name': 'short', 'path': 'mine.py', 'weight': 0.2}

    Raises:
        UserError: a weight that is no number, or a file without a function.
    """
    if given is None:
        return None
    rewards: list[dict[str, object]] = []
    for text in given:
        what, equals, weight = text.partition("=")
        path, _, name = what.rpartition(":")
        try:
            factor = float(weight) if equals else 1.0
        except ValueError:
            raise UserError(f"--reward {text}: expected a number after '=', such as 0.5, got {weight!r}") from None
        if not name or name.endswith(".py"):
            raise UserError(f"--reward {text}: expected a name or FILE.py:FUNCTION: say which function of the file")
        rewards.append({"name": name, "path": path or None, "weight": factor})
    return rewards
