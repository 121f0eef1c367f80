"""Are the arguments of a call those of the tool's JSON schema? Asked before the call; the answer is for the policy."""

from __future__ import annotations

import math
import sys
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


def is_schema(schema: object, deepest: int = 32) -> bool:
    """Whether `fitted` and chat templates can read a JSON schema, which a stranger may have written."""
    if not isinstance(schema, Mapping) or deepest < 0 or not isinstance(schema.get("properties", {}), Mapping):
        return False
    types = schema.get("type", "")
    lists = {key: schema.get(key, []) for key in ("required", "enum", "anyOf", "prefixItems")}
    lists["type"] = [types] if isinstance(types, str) else types
    if not all(isinstance(entries, list) for entries in lists.values()):
        return False
    if not all(isinstance(word, str) for word in (*lists["required"], *lists["type"])):
        return False
    items = [schema["items"]] if "items" in schema else []
    parts = (*schema.get("properties", {}).values(), *lists["anyOf"], *lists["prefixItems"], *items)
    return all(is_schema(part, deepest - 1) for part in parts)


def fitted(arguments: object, parameters: Schema) -> dict[str, Any]:
    """The arguments as the tool gets them: a whole number such as 5.0 is an integer, as JSON Schema says.

    Raises:
        ValueError: they do not fit; the message says what the tool expects.
    """
    if not isinstance(arguments, Mapping):
        raise ValueError(f"expected an object of arguments, got {_shown(arguments)}")
    properties = parameters.get("properties", {})
    missing = [name for name in parameters.get("required", ()) if name not in arguments]
    unknown = [name for name in arguments if name not in properties]
    if missing or unknown:
        got = ", ".join(map(str, arguments)) or "none"
        raise ValueError(f"expected the arguments {', '.join(properties) or 'none'}, got {got}")
    return {name: fitted_value(name, value, properties[name]) for name, value in arguments.items()}


def fitted_value(path: str, value: Any, schema: Schema) -> Any:
    """One value as its schema has it. Raises ValueError, which names the `place`, where it does not fit."""
    if value is None and schema.get("nullable"):
        return None
    if schema.get("anyOf"):
        reasons = []
        for option in schema["anyOf"]:
            try:
                return fitted_value(path, value, option)
            except ValueError as error:
                reasons.append(error)
        raise reasons[0]
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, kind) for kind in types):
        if "integer" not in types or not isinstance(value, float) or not value.is_integer():
            raise ValueError(f"expected {path} of type {' or '.join(types)}, got {_shown(value)}")
        value = int(value)
    if "enum" in schema and value not in schema["enum"]:
        raise ValueError(f"expected {path} of {', '.join(map(repr, schema['enum']))}, got {_shown(value)}")
    if isinstance(value, list | tuple):
        parts = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        if len(parts) != len(value):
            raise ValueError(f"expected {path} of {len(parts)} items, got {len(value)}")
        return [fitted_value(f"{path}[{n}]", *pair) for n, pair in enumerate(zip(value, parts, strict=True))]
    if isinstance(value, Mapping):
        others = schema.get("additionalProperties")
        schemas = dict.fromkeys(value, others if isinstance(others, Mapping) else {}) | schema.get("properties", {})
        return {key: fitted_value(f"{path}.{key}", item, schemas[key]) for key, item in value.items()}
    return value


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "number" and isinstance(value, int):
        return abs(value) <= sys.float_info.max
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _TYPES.get(kind, object))


def _shown(value: object) -> str:
    kinds = [kind for kind in _TYPES if _is(value, kind)]
    return f"{value!r:.80} ({kinds[0] if kinds else type(value).__name__})"
