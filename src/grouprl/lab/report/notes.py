"""What a user wrote about a run, which lies beside it as notes.json and has no part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grouprl.files import read_json
from grouprl.record.layout import RunDirectory
from grouprl.types import UserError

_MOST_TAGS, _LONGEST_TAG, _LONGEST_NOTE = 20, 40, 10_000


@dataclass(frozen=True)
class Notes:
    """Tags, a note, and whether the list of runs leaves it out."""

    tags: Sequence[str] = ()
    note: str = ""
    archived: bool = False


def read_notes(folder: Path) -> Notes:
    """The notes of a run; empty ones where there are none.

    Raises:
        UserError: notes.json is damaged.
    """
    path = RunDirectory(folder).notes
    notes = read_json(path)
    try:
        return checked_notes(notes.get("tags", []), notes.get("note", ""), notes.get("archived", False))
    except UserError as error:
        raise UserError(f"{path}: {error}; correct the file or remove it") from None


def checked_notes(tags: Any, note: Any, archived: Any) -> Notes:
    """Notes as somebody gave them.

    Raises:
        UserError: something is not of its kind, or too long.
    """
    texts = isinstance(tags, list) and all(isinstance(tag, str) and 0 < len(tag) <= _LONGEST_TAG for tag in tags)
    if not texts or len(tags) > _MOST_TAGS:
        raise UserError(
            f"tags: expected at most {_MOST_TAGS} texts of 1 to {_LONGEST_TAG} characters, got {tags!r:.80}"
        )
    if not isinstance(note, str) or len(note) > _LONGEST_NOTE:
        raise UserError(f"note: expected a text of at most {_LONGEST_NOTE} characters, got {note!r:.60}")
    if not isinstance(archived, bool):
        raise UserError(f"archived: expected true or false, got {archived!r:.60}")
    return Notes(tuple(dict.fromkeys(tags)), note, archived)
