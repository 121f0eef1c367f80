"""Resolves OmegaConf's names of other keys: `${data.train_batch_size}`, `${oc.select:KEY,DEFAULT}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from grouprl.config.yaml_text import read_yaml

_WHOLE = re.compile(r"\$\{(?:oc\.select:\s*)?([\w.-]+)\s*(?:,(.*))?\}", re.DOTALL)
_INSIDE = re.compile(r"\$\{([\w.-]+)\}")
_DEPTH = 8  # a reference to itself ends here


def resolve(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values with their references in place, and by key the texts whose value the file does not say.

    Args:
        values: by dotted key, as written.
        defaults: the library's own values of the keys that it names.
    """
    said: dict[str, Any] = {}
    unsaid: dict[str, str] = {}
    for key, value in values.items():
        try:
            said[key] = _resolved(key, value, {**defaults, **values}, 0)
        except LookupError:
            unsaid[key] = str(value)
    return said, unsaid


def _resolved(key: str, value: Any, known: Mapping[str, Any], depth: int) -> Any:
    if isinstance(value, list):
        return [_resolved(key, one, known, depth) for one in value]
    if not isinstance(value, str) or ("$" not in value and "`" not in value):
        return value
    if depth > _DEPTH:
        raise LookupError(value)
    if whole := _WHOLE.fullmatch(value):
        name = whole[1] if not whole[1].startswith(".") else f"{key.rpartition('.')[0]}{whole[1]}"
        if name in known:
            return _resolved(name, known[name], known, depth + 1)
        if whole[2] is None:
            raise LookupError(value)
        return _resolved(key, _scalar(whole[2].strip()), known, depth + 1)
    text = _INSIDE.sub(lambda match: str(_resolved(key, match[0], known, depth + 1)), value)
    if "$" in text or "`" in text:
        raise LookupError(value)
    return text


def _scalar(text: str) -> Any:
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        return text
