"""Every key of a verl configuration (0.9.1), and what each is here."""

from __future__ import annotations

from collections.abc import Mapping

from grouprl.imported.table import Entry

VERL: Mapping[str, Entry] = {}
"""Dotted key -> entry. A key that is missing is unsupported."""
