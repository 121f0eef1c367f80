"""Reads a configuration of TRL or verl: a YAML or JSON file, or the overrides in a shell script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from grouprl.config.yaml_text import read_yaml
from grouprl.imported.shell import OVERRIDE, overrides
from grouprl.types import UserError

Library = Literal["trl", "verl"]
_OF_VERL = {"actor_rollout_ref", "trainer", "data", "algorithm", "critic", "reward_model", "custom_reward_function"}
_MAPPINGS = ("data.apply_chat_template_kwargs",)  # a key whose value is a mapping: what is below belongs to it


@dataclass(frozen=True)
class Foreign:
    """A configuration as it was written: whose it is, and the values by key, of verl by dotted key."""

    library: Library
    values: Mapping[str, Any]


def read_foreign(path: Path) -> Foreign:
    """Reads a file of TRL or verl.

    Raises:
        UserError: the file is missing, cannot be read, or has no settings.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{path}: expected a YAML, JSON or shell file, got {why!r}: check the path") from error
    if path.suffix in (".sh", ".bash"):
        return Foreign("verl", _of_script(path, text))
    try:
        tree = json.loads(text) if path.suffix == ".json" else read_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: expected YAML or JSON, got {' '.join(str(error).split())}: correct it") from error
    if isinstance(tree, list) and tree and all(isinstance(one, str) and OVERRIDE.fullmatch(one) for one in tree):
        pairs = [one.lstrip("+").partition("=") for one in tree]  # Hydra's .hydra/overrides.yaml
        return Foreign("verl", _joined({key: _value(value) for key, _, value in pairs}))
    if not isinstance(tree, dict) or not tree:
        raise UserError(f"{path}: expected lines of KEY: VALUE, got none: give a configuration of TRL or verl")
    if any(isinstance(tree.get(key), dict) for key in _OF_VERL):
        return Foreign("verl", _joined(dict(_dotted(tree))))
    return Foreign("trl", tree)


def _dotted(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _dotted(value, f"{above}{name}.")
        elif name not in ("_target_", "hydra", "defaults"):
            yield f"{above}{name}", value


def _joined(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the keys below a mapping joined to it."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        above = next((one for one in _MAPPINGS if key.startswith(f"{one}.")), None)
        if above is None:
            found[key] = value
        else:
            found[above] = {**(found.get(above) or {}), key.removeprefix(f"{above}."): value}
    return found


def _of_script(path: Path, text: str) -> dict[str, Any]:
    try:
        found = overrides(text)
    except ValueError as error:
        raise UserError(f"{path}: expected a shell script, got {error}: correct it") from error
    if not found:
        raise UserError(
            f"{path}: expected verl's overrides, such as data.train_batch_size=256, got none: check the script; "
            "for TRL, give the YAML of --config, or JSON"
        )
    return _joined({key: _value(value) for key, value in found.items()})


def _value(text: str) -> Any:
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        return text
