"""Hints for keys that do not exist: what a setting of TRL or verl is called here."""

from __future__ import annotations

from importlib import import_module

_HINTS = "grouprl.tools.imported.hints"  # its tables have every key; only an error loads them


def name_here(name: str) -> str:
    """A sentence about a setting of TRL or verl, by the last part of its name; empty for another name."""
    return str(import_module(_HINTS).hint(name))
