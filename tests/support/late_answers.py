"""A tool, a text game and an agent that answer after a random time. Imported by worker processes: keep it light."""

from __future__ import annotations

import json
import os
import random
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from grouprl.environments.calculator import calculate as computed
from grouprl.environments.guess_number import NumberGame

SECONDS = 0.03  # the longest answer
RANDOM = random.SystemRandom()  # no seed of a run reaches it


def calculate(expression: str) -> str:
    """Computes an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / and brackets.
    """
    time.sleep(RANDOM.uniform(0, SECONDS))
    return computed(expression)


class Game(NumberGame):
    """The game of `guess_number`."""

    def step(self, message: str) -> tuple[str, float, bool, dict[str, Any]]:
        time.sleep(RANDOM.uniform(0, SECONDS))
        return super().step(message)


def agent(prompt: Sequence[dict[str, str]], number: int) -> float:
    """Asks up to three times, each time with all that was said."""
    messages = [dict(message) for message in prompt]
    for _ in range(1 + number % 3):
        time.sleep(RANDOM.uniform(0, SECONDS))
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            json.dumps({"model": "any", "messages": messages}).encode(),
            {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
        )
        with urllib.request.urlopen(request) as reply:
            message = json.load(reply)["choices"][0]["message"]
        messages += [message, {"role": "user", "content": "And one more?"}]
    return len(message["content"]) % 5 / 4
