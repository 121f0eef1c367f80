"""Builds a configuration from the arguments of a command line: files, names of recipes, changes, options."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from grouprl.types import UserError, unknown_name

if TYPE_CHECKING:
    from pydantic import BaseModel

RECIPES = Path(__file__).parents[1] / "recipes"
"""The folder of the built-in recipes."""

_Config = TypeVar("_Config", bound="BaseModel")


def config_of(
    kind: type[_Config], settings: Sequence[str] | None, options: Mapping[str, object] | None = None
) -> _Config:
    """Builds a configuration from command-line arguments.

    Args:
        kind: the class of the configuration.
        settings: files, names of built-in recipes, and changes such as steps=10.
        options: values by dotted key, None = not given; they override the settings.

    Raises:
        UserError: lists all errors.
    """
    from grouprl.config.files import load_config  # brings in torch, which --help does not need

    texts = settings or []
    refuse_options(kind, texts)
    files = [settings_file(text, kind) for text in texts if not is_change(text)]
    changes = [text for text in texts if is_change(text)]
    # As JSON, so that --name 007 stays text and a path may contain any character.
    changes += [f"{key}={json.dumps(value)}" for key, value in (options or {}).items() if value is not None]
    return load_config(kind, files, changes)


def is_change(text: str) -> bool:
    """Whether a setting is a change such as steps=10; a file or a run in a folder such as lr=1e-5 is none."""
    key, equals, _ = text.partition("=")
    return bool(equals) and "/" not in key and not os.path.exists(text)


def refuse_options(kind: type[BaseModel], settings: Sequence[str]) -> None:
    """Raises UserError for an option that a verb left among the settings; it names the setting that is meant."""
    from grouprl.config.files import advice

    for at, text in enumerate(settings):
        if text.startswith("-"):
            name, equals, value = text.lstrip("-").partition("=")
            key = name.replace("-", "_")
            value = value if equals else next(iter(settings[at + 1 :]), "VALUE")
            raise UserError(
                f"{text}: expected an option that --help lists; a setting has no dashes: "
                f"{advice(kind, key) or f'write {key}={value}'} (`grouprl settings` lists them)"
            )


def settings_file(text: str, kind: type[BaseModel] | None = None) -> Path:
    """Returns the file for a path or for the name of a built-in recipe.

    Raises:
        UserError: it is neither; the error names the recipes for this kind of configuration.
    """
    path, built_in = Path(text).expanduser(), RECIPES / f"{text}.yaml"
    if path.is_file() or path.suffix:
        return path
    if not built_in.is_file():
        from grouprl.config.yaml_text import read_yaml

        recipes = []
        for recipe in RECIPES.glob("*.yaml"):
            keys = set(read_yaml(recipe.read_text(encoding="utf-8")))
            if kind is None or keys <= kind.model_fields.keys():
                recipes.append(recipe.stem)
        raise unknown_name("settings (a file, a built-in recipe or a change such as steps=10)", text, recipes)
    return built_in


def reward_settings(texts: Sequence[str] | None) -> list[dict[str, object]] | None:
    """Parses NAME, NAME=0.5, FILE.py:FUNCTION and FILE.py:FUNCTION=0.5 into the configuration's form; None stays None.

    >>> reward_settings(["correct_answer", "mine.py:short=0.2"])[1]
    {'name': 'short', 'path': 'mine.py', 'weight': 0.2}

    Raises:
        UserError: a weight is not a number, or a file has no function name.
    """
    if texts is None:
        return None
    rewards: list[dict[str, object]] = []
    for text in texts:
        path, colon, called = text.rpartition(":")
        name, equals, weight = called.partition("=")  # before the colon a folder may be called lr=1e-5
        try:
            factor = float(weight) if equals else 1.0
        except ValueError:
            if ".py" in weight and not colon:
                raise UserError(f"--reward {text}: expected FILE.py:FUNCTION: add the name of the function") from None
            raise UserError(f"--reward {text}: expected a number after '=', such as 0.5, got {weight!r}") from None
        if path.endswith(":"):
            raise UserError(f"--reward {text}: expected one colon, got two: write {path.rstrip(':')}:{called}")
        if not name or name.endswith(".py"):
            raise UserError(f"--reward {text}: expected a name or FILE.py:FUNCTION: add the name of the function")
        # A folder, or OWNER/NAME on the hub, holds a reward model.
        if path and not path.endswith(".py") and "/" not in path and not Path(path).is_dir():
            raise UserError(f"--reward {text}: expected FILE.py:FUNCTION, got {path!r}: write {path}.py:{name}")
        rewards.append({"name": name, "path": path or None, "weight": factor})
    return rewards
