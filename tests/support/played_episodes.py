"""Episodes whose turns a test writes in the place of a policy."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.authored import authored_episode
from grouprl.environments.conversation import ToolConversations
from grouprl.environments.processes import ProcessSource
from grouprl.environments.shapes import open_tools
from grouprl.models.prompts import authored_completion, prompt_token_ids
from grouprl.rollout import Request
from grouprl.rollout.episodes import joined
from grouprl.types import Completion, ObservedTokens, Problem
from tool_templates import STYLES, tool_tokenizer

TOKENIZER = tool_tokenizer(STYLES["tools"])
PROBLEM = Problem("p", ({"role": "user", "content": "What is 4 + 5?"},), {"start": 4})


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: One number.
        b: The other.
    """
    return a + b


@cache
def kept(*tools: Callable[..., Any], environments: Any = None) -> ProcessSource:
    """These tools, in processes that serve every test: `played` does not end them."""
    source = open_tools(tools, environments)
    atexit.register(source.close)
    _KEPT.append(source)
    return source


_KEPT: list[ProcessSource] = []


def called(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    return {"role": "assistant", "content": "", "tool_calls": made}


def played(
    source: Any,
    script: Sequence[str | dict[str, Any]],
    problem: Problem = PROBLEM,
    *,
    longest: int = 100,
    tokenizer: PreTrainedTokenizerBase = TOKENIZER,
    **settings: Any,
) -> tuple[Completion, Problem]:
    """What becomes of these turns in the place of a policy's."""
    conversations = ToolConversations(source, EnvironmentConfig(**settings))
    talk = conversations.bind(tokenizer, [tokenizer.eos_token_id], max_tokens=longest)
    try:
        opened = conversations.opened(problem)
        request = Request(opened, prompt_token_ids(opened, tokenizer, longest=2000), 1)
        written: list[Completion] = []
        observations: list[ObservedTokens] = []
        for turn in script:
            text = turn if isinstance(turn, str) else written_by(opened, turn, tokenizer)
            written.append(authored_completion(0, text, tokenizer))
            answer = talk.answer(request, written, observations).result()
            if answer.episode is not None:
                assert len(written) == len(script), answer.episode
                return joined(written, observations, answer.episode), opened
            observations.append(ObservedTokens(sum(map(len, written)), answer.token_ids, answer.kept))
        raise AssertionError("the episode has not ended")
    finally:
        talk.close()
        if source not in _KEPT:
            source.close()


def written_by(problem: Problem, message: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(authored_episode(problem, [message], tokenizer).token_ids[:-1])
