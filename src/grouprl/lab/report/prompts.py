"""What the prompts of a run have in common, such as worked examples, so that pages can show what each asks."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from grouprl.record.layout import RunDirectory
from grouprl.record.queries import ends_of_problems, problem_rows, recorded
from grouprl.record.rows import parsed

_LEAST = 100  # characters of a beginning that is worth a fold
_LOOKED_AT = 1000  # problems of a run


@dataclass(frozen=True)
class SharedBeginning:
    """What at least two different prompts begin with; empty where that is too little to fold."""

    text: str = ""  # whole lines, the contents of all messages
    turns: Sequence[Any] = ()  # leading messages of a chat

    @staticmethod
    def of(texts: Sequence[str], chats: Sequence[Sequence[Any]] = ()) -> SharedBeginning:
        """What these prompts share; `chats`: the messages of each, empty for plain text."""
        if len(set(texts)) < 2:
            return SharedBeginning()
        text = os.path.commonprefix(texts)  # noqa: RUF071 (by characters)
        text = text[: text.rfind("\n") + 1]
        same = takewhile(lambda turns: all(turn == turns[0] for turn in turns), zip(*chats, strict=False))
        return SharedBeginning(text if len(text) >= _LEAST else "", [turns[0] for turns in same])

    def own(self, text: str) -> str:
        """A prompt without what it shares, for lists, in which the rest would not be seen."""
        return f"… {text[len(self.text) :]}" if self.text and text.startswith(self.text) else text

    def marked(self, text: str, chat: Sequence[Any] | None) -> list[dict[str, Any]] | None:
        """The messages of a prompt, or the parts of a text that has a shared one; None for any other text.

        Those that every prompt has are marked with `shared`: of a chat the worked examples, which end with an answer.
        """
        if chat is None:
            parts = [(self.text, True), (text.removeprefix(self.text), False)]
            messages = [{"role": "prompt", "content": part, "shared": shared} for part, shared in parts]
            return messages if self.text and text.startswith(self.text) else None
        same = self.turns if [*chat[: len(self.turns)]] == [*self.turns] else []
        roles = [message.get("role") for message in same][: len(chat) - 1]
        first = next((index for index, role in enumerate(roles) if role != "system"), 0)
        last = max((index for index, role in enumerate(roles) if role == "assistant"), default=-1)
        return [dict(message) | ({"shared": True} if first <= at <= last else {}) for at, message in enumerate(chat)]


def shared_beginning(database: sqlite3.Connection, path: Path | None = None) -> SharedBeginning:
    """What the first 1000 problems of a run begin with; the turns only with the `path` of the database, for errors.

    Raises:
        UserError: the messages are damaged.
    """
    # In their order, what the first and the last one share, all share.
    first, last = ends_of_problems(database, _LOOKED_AT)
    texts = [end["prompt"] for end in (first, last)]
    if path is None or first["chats"] < first["all_of_them"]:
        return SharedBeginning.of(texts)
    return SharedBeginning.of(texts, [parsed(path, end, "messages") or [] for end in (first, last)])


def asked_by(folder: Path, problem: str) -> dict[str, Any]:
    """The `prompt` of a problem of a run and its `messages`, see `marked`; both None where it is not recorded.

    Raises:
        UserError: the messages are damaged, or the database cannot be read.
    """
    path = RunDirectory(folder).rollouts
    with recorded(folder) as database:
        row = problem_rows(database, "prompt, messages", [problem]).get(problem)
        if row is None:
            return {"prompt": None, "messages": None}
        chat = parsed(path, row, "messages")
        return {"prompt": row["prompt"], "messages": shared_beginning(database, path).marked(row["prompt"], chat)}
