"""Every value that an option of an algorithm may have is on the page: a new one fails here, not in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

import grouprl.config.algorithm  # noqa: F401 (which imports all parts)
from grouprl.algorithms.option import Part, hints
from grouprl.lab.report.page import STATIC

WORDS = json.loads((STATIC / "stages.json").read_text(encoding="utf-8"))
# The tables that the page reads, by option.
TABLES: dict[str, list[tuple[str, ...]]] = {
    "aggregate": [("loss", "weight")],
    "baseline": [("advantages", "baseline")],
    "scale": [("advantages", "scale")],
    "std": [("statistics", "std")],
    "credit": [("ratio", "credit")],
    "surrogate": [("ratio", name) for name in ("name", "equation", "title", "maximized", "why", "acts")],
    "ratio": [("ratio", "letter"), ("ratio", "happens")],
    "kl_estimator": [("kl", "estimate")],
    "kl_in": [("kl", "happens")],
}
# Those that the page has no table for: its code, or a note beside the group, was written for these values.
BRANCHES = {
    "reward_mix": {"sum_then_normalise", "normalise_then_sum"},
    "critic_kind": {"copy", "shared"},
    "correction_kind": {"truncate", "mask"},
    "correction_level": {"token", "sequence"},
}


def parts(of: type[Part] = Part) -> Iterator[type[Part]]:
    for part in of.__subclasses__():
        if part.__module__.startswith("grouprl."):  # not those of other tests
            yield from (part, *parts(part))


def choices() -> dict[str, set[str]]:
    """The values of each option that has a list of them, over all parts."""
    found: dict[str, set[str]] = {}
    for part in parts():
        for name, hint in hints(part).items():
            for one in (hint, *get_args(hint)):
                if get_origin(one) is Literal:
                    found.setdefault(name, set()).update(get_args(one))
    return found


@pytest.mark.parametrize("name", sorted(choices()))
def test_the_page_has_every_value_of_an_option(name: str) -> None:
    values = choices()[name]
    if name in BRANCHES:
        assert values == BRANCHES[name], "look at the page: does it say the right thing of the new value?"
    for place in TABLES.get(name, []):
        table: Any = WORDS
        for key in place:
            table = table[key]
        assert values <= set(table), f"stages.json, {'.'.join(place)}"
    assert name in TABLES or name in BRANCHES
