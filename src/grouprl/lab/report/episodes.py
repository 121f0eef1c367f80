"""An episode as a conversation: the turns of the policy, and what it was shown after each."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grouprl.files import is_number
from grouprl.record.files import json_text
from grouprl.record.rows import parsed, token_advantages
from grouprl.types import Episode, UserError

_LEAST = 40  # characters of a text that is cut


def conversation(path: Path, row: sqlite3.Row, *, most: int) -> dict[str, Any] | None:
    """The episode of a completion; None where it has a single turn.

    Args:
        path: of the database, for errors.
        row: `episode`, `advantage`, `length` and `token_advantages`.
        most: characters of all texts together; each gets an equal share and is cut there.

    Returns:
        Why it `ended`, whether it is `invalid`, the environment's `reward` (None = unscored), and `turns`. A turn has
        its `text`, the index of its last token (`end`), the least and the largest of its `advantages`, its `reward`
        (None = the environment gave none), its `calls`, what others said after it (`replies`), how many tokens the
        policy was `shown` before the next turn, and whether these begin the conversation anew (`forked`).

    Raises:
        UserError: the episode is damaged.
    """
    contents = parsed(path, row, "episode")
    if contents is None:
        return None
    try:
        episode = Episode.of(contents)
        ends = [-1, *episode.ends]
        if ends != sorted(set(ends)) or ends[-1] != row["length"] - 1:
            raise ValueError(f"turns that end at {ends[1:]}")
        for number in (episode.reward, *episode.turn_rewards):
            if number is not None and not is_number(number):
                raise ValueError(f"the reward {number!r}")
        turns = _turns(episode, token_advantages(row))
    except (TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
        raise UserError(
            f"{path}: expected the episode of a completion, got '{error!s:.80}': restore the file"
        ) from None
    texts: list[tuple[dict[str, Any], str]] = [(turn, "text") for turn in turns]
    texts += [(call, name) for turn in turns for call in turn["calls"] for name in ("tool", "arguments", "result")]
    texts += [(reply, "content") for turn in turns for reply in turn["replies"]]
    for holder, name in texts:
        text, share = holder[name], max(_LEAST, most // len(texts))
        holder[name] = text if len(text) <= share else f"{text[:share]}… ({len(text):,} characters in all)"
    return {
        "ended": _text(episode.ended),
        "invalid": bool(episode.invalid),
        "reward": episode.reward,
        "turns": turns,
    }


def _turns(episode: Episode, advantages: Sequence[float]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    starts = (0, *(end + 1 for end in episode.ends))
    after = {observation.after - 1: observation for observation in episode.observations}
    rewards = (*episode.turn_rewards, *(None,) * len(episode.ends))
    for start, end, reward in zip(starts, episode.ends, rewards, strict=False):
        turn_advantages = advantages[start : end + 1]
        numbers = {"end": end, "advantages": [min(turn_advantages), max(turn_advantages)], "reward": reward}
        shown = {"shown": len(after[end].token_ids), "forked": after[end].kept is not None} if end in after else {}
        turns.append({"text": "", **numbers, "shown": 0, "forked": False, **shown, "calls": [], "replies": []})
    spoken = -1
    for message in episode.messages:
        if message["role"] == "assistant":
            spoken += 1
            turns[spoken]["text"] = _text(message["content"])
        elif message["role"] != "tool":  # `calls` have more of those
            turns[spoken]["replies"].append({name: _text(message[name]) for name in ("role", "content")})
    for call in episode.calls:
        texts = {name: _text(getattr(call, name)) for name in ("tool", "arguments", "result", "fault")}
        turns[call.turn]["calls"].append({**texts, "seconds": float(call.seconds)})
    return turns


def _text(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)
