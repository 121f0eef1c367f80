"""A reward for completions that are JSON of a given schema. Needs the extra `json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from grouprl.files import is_deeper
from grouprl.rewards.rules import Ids, Texts, Values, bounded, completion_text, strict_members
from grouprl.types import UserError, import_extra

_DEEPEST = 100  # levels; checking a schema takes several stack frames for each


@dataclass(frozen=True)
class JsonSchema:
    """1.0 when a completion is JSON that is valid against a JSON Schema, else 0.0.

    It checks the content of the last closed ```json fence, or without a fence the whole completion. The text must be
    strict JSON: no NaN, no number beyond a float's range, no repeated key, at most 100 levels. The schema is `schema`,
    or without it the column `column` of each problem (a mapping, or JSON text); None there = does not apply.

    Range: 0 or 1. Failure modes: the simplest valid value earns as much as the best, such as `{}` if no key is
    required: require every key, forbid others (`additionalProperties: false`), bound lengths. Values may be wrong;
    `format` is not checked; a `pattern` runs on the policy's text, with the risk of `regex`. A `$ref` to another
    document is never fetched: it raises. Raises ValueError for an invalid schema and for too long completions.
    """

    schema: Mapping[str, Any] | None = None
    column: str = "schema"

    def __post_init__(self) -> None:
        import_extra("jsonschema", "json", "reward json_schema")
        if self.schema is not None:
            try:
                _validator(_as_text(self.schema))
            except ValueError as error:
                raise UserError(f"reward json_schema: {error}: fix the argument schema") from error

    def __call__(self, prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
        """Returns 1.0, 0.0 or None for each completion."""
        if self.schema is None and self.column not in columns:
            raise ValueError(f"expected the argument schema or a column {self.column!r}, got {', '.join(columns)}")
        schemas = columns[self.column] if self.schema is None else [self.schema] * len(completions)
        return [
            None if schema is None else float(_is_valid(bounded(completion_text(completion)), schema))
            for completion, schema in zip(completions, schemas, strict=True)
        ]


def _is_valid(text: str, schema: Mapping[str, Any] | str) -> bool:
    validator = _validator(_as_text(schema))
    content: str | None = None
    lines: list[str] | None = None
    for line in text.split("\n"):
        match line.strip().lower():
            case "```json":
                lines = []
            case "```" if lines is not None:
                content, lines = "\n".join(lines), None
            case _ if lines is not None:
                lines.append(line)
    try:
        value = json.loads(
            text if content is None else content,
            object_pairs_hook=strict_members,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except (ValueError, RecursionError):  # not JSON; Python before 3.14 stops at about 1,000 levels
        return False
    return not is_deeper(value, _DEEPEST) and bool(validator.is_valid(value))


def _as_text(schema: Mapping[str, Any] | str) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema, sort_keys=True)


@lru_cache(maxsize=64)
def _validator(schema_text: str) -> Any:
    """Makes a validator. Raises ValueError when the text is not a JSON Schema."""
    jsonschema = import_module("jsonschema")
    try:
        schema = json.loads(schema_text)
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
    except (ValueError, jsonschema.SchemaError) as error:
        raise ValueError(f"expected a JSON Schema, got {schema_text:.80}: {error!s:.200}") from error
    # A local registry, because the default one fetches $ref targets from the network.
    return kind(schema, registry=import_module("jsonschema_specifications").REGISTRY)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("no finite number")
    return value
