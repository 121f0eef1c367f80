"""Resolves OmegaConf's names of other keys: `${data.train_batch_size}`, `${oc.select:KEY,DEFAULT}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from grouprl.config.yaml_text import read_yaml
from grouprl.tools.imported.table import Unknown

_WHOLE = re.compile(r"\$\{(?:oc\.select:\s*)?([\w.-]+)\s*(?:,(.*))?\}", re.DOTALL)
_INSIDE = re.compile(r"\$\{([\w.-]+)\}")
_DEPTH, _LONGEST = 8, 10_000  # a reference to itself ends here


def resolve(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values with their references in place; a value that the file does not decide is `Unknown`.

    Args:
        values: by dotted key, as written.
        defaults: the library's own values of the keys that it names.
    """
    all_values, resolved = {**defaults, **values}, {}
    for key, value in values.items():
        try:
            resolved[key] = _resolved(key, value, all_values, 0)
        except LookupError:
            resolved[key] = Unknown(str(value))
    return resolved


def _resolved(key: str, value: Any, all_values: Mapping[str, Any], depth: int) -> Any:
    if isinstance(value, list):
        return [_resolved(key, item, all_values, depth) for item in value]
    if not isinstance(value, str) or ("$" not in value and "`" not in value):
        return value
    if depth > _DEPTH:
        raise LookupError(value)
    if reference := _WHOLE.fullmatch(value):
        name = reference[1] if not reference[1].startswith(".") else f"{key.rpartition('.')[0]}{reference[1]}"
        if name in all_values:
            return _resolved(name, all_values[name], all_values, depth + 1)
        if reference[2] is None:
            raise LookupError(value)
        return _resolved(key, scalar(reference[2].strip()), all_values, depth + 1)
    if value.count("$") > _DEPTH:  # texts of texts grow with a power of it
        raise LookupError(value)
    text = _INSIDE.sub(lambda match: str(_resolved(key, match[0], all_values, depth + 2)), value)
    if "$" in text or "`" in text or len(text) > _LONGEST:
        raise LookupError(value)
    return text


def scalar(text: str) -> Any:
    """A value that is written as text: its number, list or other YAML, else the text."""
    try:
        return read_yaml(text) if text else ""
    except yaml.YAMLError:
        return text
