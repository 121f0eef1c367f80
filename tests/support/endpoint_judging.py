"""A judge that asks the server on loopback, and does not wait long between its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chat_server import Asked, ChatServer, Reply
from grouprl.checks.judge_model import client
from grouprl.checks.judge_model.grading import JudgeModel
from grouprl.rewards.resolve import built_in

KEY = "sk-Very+Secret/0123456789=="


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("JUDGE_KEY", KEY)


def judge(server: ChatServer, **settings: Any) -> JudgeModel:
    return judge_of(base_url=server.url, model="m", **settings)


def judge_of(**settings: Any) -> JudgeModel:
    reward = built_in("judge_model", arguments=settings).function
    assert isinstance(reward, JudgeModel)
    return reward


def judged(reward: JudgeModel, completions: list[str], **columns: Any) -> list[Any]:
    ids = [[1]] * len(completions)
    return reward(prompts=["2 + 2 = ?"] * len(completions), completions=completions, completion_ids=ids, **columns)


def by_completion(replies: dict[str, Reply]) -> Callable[[Asked], Reply]:
    return lambda asked: replies[asked.blocks["completion"]]
