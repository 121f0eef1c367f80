"""What every section of a configuration is: frozen, strict, without unknown keys; and the types of common values."""

from __future__ import annotations

import os.path
from contextlib import suppress
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from grouprl.config.files import in_sections
from grouprl.types import UserError

# Types are strict, because YAML distinguishes 8 from "8" and true; but a run may be named 7.
Text = Annotated[str, Field(strict=False, coerce_numbers_to_str=True, min_length=1)]
# A shell expands ~ at the start of a word alone, not in task.path=~/problems.jsonl.
Place = Annotated[Text, AfterValidator(os.path.expanduser)]
Arguments = Annotated[
    dict[str, Any],
    AfterValidator(
        lambda items: {key: os.path.expanduser(v) if isinstance(v, str) else v for key, v in items.items()},
    ),
]
Name = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Variable = Annotated[Text, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
# A list of one item may be written without brackets.
Names = Annotated[tuple[Text, ...], BeforeValidator(lambda names: (names,) if isinstance(names, str) else names)]

_MOST_EXAMPLES = 10_000


def _examples(value: object) -> object:
    """A count, or the name of a file; a text with a number in it is a count."""
    with suppress(ValueError):
        value = float(value) if isinstance(value, str) else value
        value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, str) or (type(value) is int and 0 <= value <= _MOST_EXAMPLES):
        return value
    raise ValueError(f"expected a number of train problems from 0 to {_MOST_EXAMPLES}, or a data file")


Examples = Annotated[int | Place, BeforeValidator(_examples)]


class Section(BaseModel):
    """A part of a configuration: frozen, strict, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def refuse_beside(self, other: str, *keys: str, section: str = "") -> None:
        """Checks that settings of this section which have no effect beside `other` have their defaults.

        Raises:
            UserError: one of them has another value.
        """
        for key in keys:
            if (value := getattr(self, key)) != type(self).model_fields[key].default:
                raise UserError(
                    f"{section}{key}: expected none beside {other}, got {value}, which would have no effect: remove one"
                )

    @model_validator(mode="before")
    @classmethod
    def _in_sections(cls, values: Any) -> Any:
        return in_sections(cls, values)
