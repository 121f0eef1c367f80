"""Environments, tools, games, agents and rewards in TRL's form, or as near to it as their kind comes."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any


class Counter:
    """TRL's form: it owns the prompt, the tool and a reward."""

    def reset(self, start: int = 0, **row: Any) -> str:
        self.total, self.calls = start, []
        return f"Count from {start}."

    def add(self, a: int) -> int:
        """Adds.

        Args:
            a: A number.
        """
        self.total += a
        self.calls.append(a)
        return self.total

    def get_reward(self) -> float:
        return 2.0 * self.total


class Plain:
    """The same without a reward, and with nothing to say at the start."""

    def reset(self, **row: Any) -> None:
        self.seen = {"row": sorted(row), "calls": []}

    def add(self, a: int) -> int:
        """Adds.

        Args:
            a: A number.
        """
        self.seen["calls"].append(a)
        return a

    def count(self) -> int:
        """Counts the calls."""
        return len(self.seen["calls"])


class Sparse(Plain):
    """It gives a reward only where something was added; another class than `Plain`."""

    async def get_reward(self) -> float | None:
        return 0.5 if self.seen["calls"] else None


class Never(Plain):
    def get_reward(self) -> None: ...


class Begins:
    """TRL's form of what a game or an agent says first."""

    def reset(self, **row: Any) -> str:
        return "It begins."


class Game:
    def reset(self) -> str:
        return "It begins."

    def step(self, text: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", float(len(text)), True, {}


def agent(prompt: Any) -> float:
    messages = [{"role": "user", "content": prompt[-1]["content"] + "It begins."}]
    address, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    body = json.dumps({"model": "any", "messages": messages}).encode()
    heads = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/chat/completions", body, heads)) as reply:
        return float(len(json.load(reply)["choices"][0]["message"]["content"]))


def add(a: int) -> int:
    """Adds.

    Args:
        a: A number.
    """
    return a


def twice(a: int) -> int:
    """Doubles.

    Args:
        a: A number.
    """
    return 2 * a


def text_of(completion: Any) -> str:
    return str(completion[-1]["content"])


def words(completions: list[Any], **columns: Any) -> list[float]:
    return [float(len(text_of(one).split())) for one in completions]


def length(completions: list[Any], **columns: Any) -> list[float]:
    return [float(len(text_of(one))) for one in completions]


def is_counter(environments: list[Any], **columns: Any) -> list[float]:
    """As TRL's docs suggest: what the object is, its list, and its method."""
    return [
        100.0 * isinstance(one, Counter) + 10.0 * sum(one.calls) + one.get_reward() if isinstance(one, Counter) else 0.0
        for one in environments
    ]


def counted(environments: list[Any], **columns: Any) -> list[float | None]:
    return [one.count() + len(one.seen["row"]) if isinstance(one, Plain) else None for one in environments]


def starts(start: list[int], **columns: Any) -> list[float]:
    return [float(one) for one in start]
