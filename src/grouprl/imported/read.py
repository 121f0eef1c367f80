"""Reads a configuration of TRL or verl: a YAML or JSON file, or the overrides in a shell script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from grouprl.config.yaml_text import read_yaml
from grouprl.types import UserError

Library = Literal["trl", "verl"]
_OF_VERL = {"actor_rollout_ref", "trainer", "data", "algorithm", "critic", "reward_model", "custom_reward_function"}
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w-]*(?:\.[\w-]+)+)=(.*)", re.DOTALL)
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^${}]*))?\})")


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
        return Foreign("verl", _overrides(path, text))
    try:
        tree = json.loads(text) if path.suffix == ".json" else read_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: expected YAML or JSON, got {' '.join(str(error).split())}: correct it") from error
    if not isinstance(tree, dict) or not tree:
        raise UserError(f"{path}: expected lines of KEY: VALUE, got none: give a configuration of TRL or verl")
    if any(isinstance(tree.get(key), dict) for key in _OF_VERL):
        return Foreign("verl", dict(_dotted(tree)))
    return Foreign("trl", tree)


def _dotted(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _dotted(value, f"{above}{name}.")
        elif name not in ("_target_", "hydra", "defaults"):
            yield f"{above}{name}", value


def _overrides(path: Path, text: str) -> dict[str, Any]:
    """The words KEY.KEY=VALUE of a script, with its own variables in place."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UserError(f"{path}: expected a shell script, got {error}: correct it") from error
    variables: dict[str, str] = {}
    found: dict[str, Any] = {}
    for word in words:
        if over := _OVERRIDE.fullmatch(word):
            found[over[1]] = _value(path, over[1], _filled(over[2], variables))
        elif assigned := _ASSIGNED.fullmatch(word):
            variables[assigned[1]] = _filled(assigned[2], variables)
    if not found:
        raise UserError(f"{path}: expected overrides such as data.train_batch_size=256, got none: check the script")
    return found


def _filled(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[2], match[3] if match[3] is not None else match[0])

    return _VARIABLE.sub(value, text)


def _value(path: Path, key: str, text: str) -> Any:
    if "$" in re.sub(r"\$HOME|\$\{HOME\}", "", text) or "`" in text:
        raise UserError(
            f"{path}: {key}: expected a value, got {text}: the script does not say it; write the value there"
        )
    try:
        return read_yaml(re.sub(r"\$HOME|\$\{HOME\}", "~", text)) if text != "~" else None
    except yaml.YAMLError:
        return text
