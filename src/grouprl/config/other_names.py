"""Hints for keys that do not exist: what a setting of TRL or verl is called here."""

from __future__ import annotations

from grouprl.leaves import find_leaf


def name_here(name: str) -> str:
    """A sentence about a setting of TRL or verl, by the last part of its name; empty for another name."""
    hint = find_leaf("hints")
    return "" if hint is None else str(hint(name))
