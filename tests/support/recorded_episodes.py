"""A recorded run of hand-made episodes: turns, tool calls, faults, an invalid one, texts that try to be markup."""

from __future__ import annotations

import math
from pathlib import Path

from grouprl.record.write import RunRecord
from grouprl.types import (
    Completion,
    Episode,
    Group,
    ObservedTokens,
    Problem,
    RewardOutcome,
    StepRecord,
    StopReason,
    ToolCall,
)

CONFIG = "name: run\nsteps: 1\nalgorithm: {name: grpo}\nmodel: {path: abacus}\ntask: {name: calculator}\n"
SCRIPT = "<script>window.hostile = 1; alert(1)</script>"
IMAGE = "<img src=/fetched/image onerror=\"window.hostile=1;alert('image')\">"
LONG = "ü🙂<b>7</b> " * 10_000  # 110,000 characters
METRICS = {
    "reward": 0.5,
    "episodes/turns": 2.5,
    "episodes/calls": 1.75,
    "episodes/tool_seconds": 0.4,
    "episodes/faults/timeout": 0.14,
    "episodes/ended/finished": 0.75,
    "episodes/ended/timeout": 0.25,
    "tokens/observed": 37,
}

CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "17 * 3"}}</tool_call>'
ASSISTANT, TOOL, USER = "assistant", "tool", "user"


def _said(*pairs: tuple[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": content} for role, content in pairs)


SOLVED = Episode(
    observations=(ObservedTokens(3, (5,) * 8), ObservedTokens(5, (6,) * 4)),
    messages=_said((ASSISTANT, CALL), (TOOL, "51"), (ASSISTANT, "Is it 51?"), (USER, "Yes."), (ASSISTANT, "51")),
    calls=(ToolCall(0, "calculate", '{"expression": "17 * 3"}', "51", 0.0123),),
    ends=(2, 4, 6),
    turn_rewards=(None, 0.25, 1.0),
    reward=1.0,
)
TWO_CALLS = Episode(
    observations=(ObservedTokens(4, (5,) * 20),),
    messages=_said((ASSISTANT, SCRIPT), (TOOL, IMAGE), (TOOL, LONG), (ASSISTANT, "\u202e15 \x1b[31m")),
    calls=(
        ToolCall(0, SCRIPT, IMAGE, f"{IMAGE} {SCRIPT}", 1.5),
        ToolCall(0, "search_notes", '{"query": "ü"}', LONG, 0.25),
    ),
    ends=(3, 6),
    turn_rewards=(0.5, None),
    reward=0.0,
    ended="turns",
)
TIMED_OUT = Episode(
    observations=(),
    messages=_said((ASSISTANT, CALL), (TOOL, "expected an answer within 10 s, got none")),
    calls=(
        ToolCall(0, "calculate", '{"expression": "9 ** 9 ** 9"}', "expected an answer within 10 s, got none", 10.0,
                 "timeout"),
    ),
    ends=(6,),
    turn_rewards=(None,),
    ended="timeout",
    invalid="timeout: expected an answer within 10 s, got none",
)  # fmt: skip
UNREADABLE = Episode(
    observations=(ObservedTokens(5, (5,) * 5, 2),),
    messages=_said((ASSISTANT, "{no json"), (TOOL, "expected JSON"), (ASSISTANT, "")),
    calls=(ToolCall(0, "", "{no json", "expected JSON", 0.0, "json"),),
    ends=(4, 6),
    turn_rewards=(None, None),
    ended="length",
)
EPISODES = (SOLVED, TWO_CALLS, TIMED_OUT, UNREADABLE)
# SOLVED has one advantage in each turn, UNREADABLE one for each token.
ADVANTAGES = (
    (1.0, 1.0, 1.0, 0.5, 0.5, 2.0, 2.0),
    (-0.75,) * 7,
    (0.0,) * 7,
    (-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7),
)


def episode_group(problem: str = "p") -> Group:
    numbers = (-0.5, -0.25, -0.125, -1.0, -2.0, -0.5, -0.25)
    completions = tuple(
        Completion(
            index,
            (10, 11, 12, 13, 14, 15, 16),
            numbers,
            numbers,
            "\n".join(message["content"] for message in episode.messages if message["role"] == ASSISTANT),
            StopReason.LENGTH if episode.ended == "length" else StopReason.END,
            0,
            episode,
        )
        for index, episode in enumerate(EPISODES)
    )
    prompt = ({"role": "user", "content": "What is 17 * 3?"},)
    return Group(Problem(problem, prompt, {"answer": "51"}), (1, 2), completions)


def record_episodes(directory: Path, steps: int = 1) -> Path:
    """Records a run with one group of these episodes in each step."""
    outcomes = [
        RewardOutcome(math.nan, {"verdict": None}, episode.invalid)
        if episode.invalid
        else RewardOutcome(episode.reward or 0.0, {"verdict": episode.reward or 0.0})
        for episode in EPISODES
    ]
    with RunRecord.create(directory, CONFIG) as record:
        for step in range(1, steps + 1):
            record.step(StepRecord(step, METRICS, [episode_group()], [outcomes], [ADVANTAGES]))
    return directory
