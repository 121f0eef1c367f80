"""The parts of an algorithm and their options: default, description and range, which the constructor checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from reprlib import repr as shown
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from grouprl.types import UserError, nearest_name


def option(
    default: Any, about: str, *, low: float | None = None, high: float | None = None, below: float | None = None
) -> Any:
    """Declares a field of a `Part`.

    Args:
        default: the value without a setting.
        about: a description that a newcomer understands.
        low, high: inclusive range of a number.
        below: exclusive upper bound.
    """
    return field(default=default, metadata={"field": Field(default, description=about, ge=low, le=high, lt=below)})


@dataclass(frozen=True)
class Part:
    """A group of options of an algorithm that one pure function uses.

    Option names are unique over all parts, so that `algorithm.clip_high=0.3` names one part.
    Raises UserError for a value of the wrong type or out of range.
    """

    # Option values that mean "this part is None"; empty for a part that every algorithm has.
    absent: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for name, fault in faults(type(self), vars(self)).items():
            raise UserError(f"algorithm.{name}: {complaint(fault, about(type(self), name))}")

    @property
    def is_own(self) -> bool:
        """Whether a user wrote its class."""
        return type(self).__module__.partition(".")[0] != "grouprl"

    def refuse_idle(self, *names: str, beside: str) -> None:
        """Raises UserError for the first of these options that is set although `beside` makes it have no effect."""
        for option in fields(self):
            if option.name in names and getattr(self, option.name) != option.default:
                raise UserError(
                    f"algorithm.{option.name}: expected another value with "
                    f"algorithm.{beside}={getattr(self, beside)!r}, "
                    f"got {getattr(self, option.name)!r}: it has no effect there; remove it"
                )


def _model(kind: type[Part]) -> type[BaseModel]:
    key: Any = kind  # a class, which mypy takes for no key of a cache
    return _model_of(key)


@cache
def _model_of(kind: Any) -> type[BaseModel]:
    """The options of a kind of part as a strict model: true is no number, and a number is finite."""
    types = get_type_hints(kind)
    options: dict[str, Any] = {
        option.name: (types[option.name], option.metadata.get("field", option.default)) for option in fields(kind)
    }
    strict = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)  # an own class may have any
    return create_model(kind.__name__, __config__=strict, **options)


def hints(kind: type[Part]) -> Mapping[str, Any]:
    """Returns the type of each option of a kind of part, by name."""
    return {name: option.annotation for name, option in _model(kind).model_fields.items()}


def about(kind: type[Part], name: str) -> str:
    """Returns the description of an option."""
    return _model(kind).model_fields[name].description or ""


def faults(kind: type[Part], values: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns what pydantic finds wrong with values of a kind's options, by name; other names are ignored."""
    try:
        _model(kind).model_validate(values)
    except ValidationError as error:
        return {str(fault["loc"][0]): fault for fault in error.errors(include_url=False)}
    return {}


_SENTENCES = {
    "missing": "expected a value",
    "model_type": "expected a section with keys of its own",
    "dict_type": "expected a section with keys of its own",
    "string_pattern_mismatch": "expected another form",
    "tuple_type": "expected a list (KEY.0=... changes an existing item)",
}


def complaint(fault: Mapping[str, Any], description: str) -> str:
    """Writes one of pydantic's errors as a sentence: expected, got, meaning of the setting, nearest value."""
    said, _, remedy = fault["msg"].removeprefix("Value error, ").partition("; ")
    expected = _SENTENCES.get(fault["type"]) or re.sub(r"^\w+ should (be|have|match)", "expected", said)
    got = "nothing" if fault["type"] == "missing" else shown(fault["input"])
    choices = re.findall("'([^']*)'", expected) if fault["type"] == "literal_error" else ()
    near = nearest_name(str(fault["input"]), choices)
    hint = f"; {remedy}" if remedy else f"; did you mean {near!r}?" if near else ""
    return f"{expected}, got {got}{description and f' ({description})'}{hint}"
