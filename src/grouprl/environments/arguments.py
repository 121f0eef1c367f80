"""Are the arguments of a call those of the tool's JSON schema? Asked before the call; the answer is for the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grouprl.environments.base import Schema

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list, tuple),
    "object": (dict,),
}


def complaint(arguments: object, parameters: Schema) -> str:
    """What is wrong with arguments, with what the tool expects; empty = nothing."""
    if not isinstance(arguments, Mapping):
        return f"expected an object of arguments, got {_shown(arguments)}"
    known = parameters["properties"]
    missing = [name for name in parameters.get("required", ()) if name not in arguments]
    unknown = [name for name in arguments if name not in known]
    if missing or unknown:
        got = ", ".join(map(str, arguments)) or "none"
        return f"expected the arguments {', '.join(known) or 'none'}, got {got}"
    wrong = (_mismatch(name, arguments[name], known[name]) for name in arguments)
    return next(filter(None, wrong), "")


def _mismatch(place: str, value: Any, schema: Schema) -> str:
    if value is None and schema.get("nullable"):
        return ""
    if "anyOf" in schema:
        tried = [_mismatch(place, value, one) for one in schema["anyOf"]]
        return tried[0] if all(tried) else ""
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, kind) for kind in types):
        return f"expected {place} of type {' or '.join(types)}, got {_shown(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"expected {place} of {', '.join(map(repr, schema['enum']))}, got {_shown(value)}"
    if isinstance(value, list | tuple):
        parts = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        if len(parts) != len(value):
            return f"expected {place} of {len(parts)} items, got {len(value)}"
        inside = [(f"{place}[{n}]", one, part) for n, (one, part) in enumerate(zip(value, parts, strict=True))]
    elif isinstance(value, Mapping):
        others = schema.get("additionalProperties")
        known = {**dict.fromkeys(value, others if isinstance(others, Mapping) else {}), **schema.get("properties", {})}
        inside = [(f"{place}.{key}", one, known[key]) for key, one in value.items()]
    else:
        return ""
    return next(filter(None, (_mismatch(*one) for one in inside)), "")


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, object))


def _shown(value: object) -> str:
    kinds = [kind for kind in _TYPES if _is(value, kind)]
    return f"{value!r:.80} ({kinds[0] if kinds else type(value).__name__})"
