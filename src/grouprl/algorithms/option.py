"""The parts of an algorithm and their options: default, description and range, which the constructor checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from grouprl.types import UserError


def option(default: Any, about: str, *, low: float = -math.inf, high: float = math.inf, below: float = math.inf) -> Any:
    """Declares a field of a `Part`.

    Args:
        default: the value without a setting.
        about: a description that a newcomer understands.
        low, high: inclusive range of a number.
        below: exclusive upper bound.
    """
    return field(default=default, metadata={"about": about, "low": low, "high": high, "below": below})


_UNBOUNDED = {"low": -math.inf, "high": math.inf, "below": math.inf}


@dataclass(frozen=True)
class Part:
    """A group of options of an algorithm that one pure function uses.

    Option names are unique over all parts, so that `algorithm.clip_high=0.3` names one part.
    Raises UserError for a value of the wrong type or out of range.
    """

    # Option values that mean "this part is None"; empty for a part that every algorithm has.
    absent: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for one in fields(self):
            value, hint = getattr(self, one.name), hints(type(self))[one.name]
            if not fits(value, hint):
                raise UserError(f"algorithm.{one.name}: got {value!r}, expected {described(hint)}")
            low, high, below = (one.metadata.get(key, bound) for key, bound in _UNBOUNDED.items())
            if isinstance(value, int | float) and not (low <= value <= high and value < below):
                raise UserError(f"algorithm.{one.name}: {value!r} is out of range, expected {_range(low, high, below)}")

    def refuse_idle(self, *names: str, beside: str) -> None:
        """Raises UserError for the first of these options that is set although `beside` makes it have no effect."""
        for one in fields(self):
            if one.name in names and getattr(self, one.name) != one.default:
                raise UserError(
                    f"algorithm.{one.name}: expected another value with algorithm.{beside}={getattr(self, beside)!r}, "
                    f"got {getattr(self, one.name)!r}: it has no effect there; remove it"
                )


def hints(part: type[Part]) -> Mapping[str, Any]:
    """Returns the type of each option of a kind of part, by name."""
    known: Any = part
    return _hints(known)


@cache
def _hints(part: Any) -> Mapping[str, Any]:
    found = get_type_hints(part)
    return {one.name: found[one.name] for one in fields(part)}


def fits(value: object, hint: Any) -> bool:
    """Whether a value has an option's type; true and false are not numbers, and a number must be finite."""
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, kind) for kind in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, get_origin(hint) or hint)  # an own class may have any type


def described(hint: Any) -> str:
    """Describes an option's type in words."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(described(kind) for kind in get_args(hint))
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return f"one of {', '.join(choices)}" if len(choices) > 1 else repr(choices[0])
    words = {float: "a finite number", int: "a whole number", bool: "true or false", type(None): "null"}
    return words.get(hint, str(hint))


def _range(low: float, high: float, below: float) -> str:
    if below < math.inf:
        return f"{low:g} or more and less than {below:g}"
    if high < math.inf:
        return f"{low:g} to {high:g}"
    return f"at least {low:g}"
