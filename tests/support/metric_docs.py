"""The metrics as the docs and the page have them, and how their names are matched."""

from __future__ import annotations

import json
import re
from pathlib import Path

from grouprl.report.page import STATIC

PAGE = (Path(__file__).parents[2] / "docs" / "run_directory.md").read_text(encoding="utf-8")
DEFINITIONS: dict[str, dict[str, str]] = json.loads((STATIC / "definitions.json").read_text(encoding="utf-8"))


def table(heading: str) -> dict[str, dict[str, str]]:
    """The first table with keys under a heading: of each key its cells by column; a row may have several keys."""
    section = PAGE[PAGE.index(f"\n{heading}\n") :]
    head, _, *rows = (cells(row) for row in section[section.index("| key |") :].split("\n\n")[0].splitlines())
    return {key: dict(zip(head, row, strict=True)) for row in rows for key in re.findall(r"`([^`]+)`", row[0])}


def cells(row: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def plain(markdown: str) -> str:
    """The text without Markdown marks: a link becomes its text, and a link in parentheses goes."""
    text = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", markdown)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


def key_of(name: str) -> str | None:
    """The key of a recorded name, such as rewards/correct_answer/mean, in the docs; None when they have none."""
    known = [*METRICS, *HELD_OUT]
    if name in known:
        return name
    return next((key for key in known if "NAME" in key and re.fullmatch(key.replace("NAME", ".+"), name)), None)


METRICS = table("## metrics.jsonl")
EVALUATED = table("## evaluations.jsonl and summary.json")
HELD_OUT = {key: row for key, row in EVALUATED.items() if key in DEFINITIONS and key not in METRICS}
