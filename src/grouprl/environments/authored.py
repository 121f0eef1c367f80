"""Conversations that somebody wrote, as completions to imitate: the assistant's turns are learned, the rest is read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.environments.base import Call
from grouprl.environments.formats import ToolFormat
from grouprl.models.prompts import authored_completion, prompt_token_ids
from grouprl.rollout.episodes import joined, read_tokens
from grouprl.types import Completion, Episode, Message, ObservedTokens, Problem, UserError


def authored_episode(
    problem: Problem, messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> Completion:
    """The completion of messages after a prompt, in the form of chat templates: assistant, tool, ..., assistant.

    Args:
        problem: its tools decide the form of calls.
        messages: begin and end with the assistant; `tool_calls` of a message stand after its content.
        tokenizer: of the model that learns it.

    Raises:
        UserError: the roles do not alternate so, or the chat template cannot write tools.
    """
    form = ToolFormat.of(tokenizer, problem.tools)
    parts = [(is_own, list(part)) for is_own, part in groupby(messages, lambda message: message["role"] == "assistant")]
    if not parts or not parts[0][0] or not parts[-1][0] or any(is_own and len(part) > 1 for is_own, part in parts):
        roles = ", ".join(str(message["role"]) for message in messages)
        raise UserError(
            f"{problem.where}: expected a completion that begins and ends with the assistant, with results of tools or "
            f"a message between its turns, got {roles}: change the messages"
        )
    turns: list[Completion] = []
    observations: list[ObservedTokens] = []
    calls: list[Call] = []
    said: list[Message] = []
    thinks = False
    prompt_ids = prompt_token_ids(problem, tokenizer, longest=sys.maxsize)
    for is_own, part in parts:
        if is_own:
            after_results = bool(calls)
            functions = [call["function"] for call in part[0].get("tool_calls") or ()]
            calls = [Call(str(function["name"]), function.get("arguments") or {}) for function in functions]
            text = form.written(str(part[0].get("content") or ""), calls)
            turns.append(authored_completion(0, text, tokenizer))
            said.append({"role": "assistant", "content": text})
            thinks |= form.thinks(text, after_results=after_results)
        else:
            kept_count = None
            if not calls and len(part) == 1:
                ids = form.message_ids(str(part[0]["role"]), str(part[0]["content"]), ended=True)
            elif len(calls) == len(part):
                pairs = [(call, str(message["content"])) for call, message in zip(calls, part, strict=True)]
                ids = form.observation_ids(pairs, ended=True)
            else:
                raise UserError(
                    f"{problem.where}: expected a result for each of {len(calls)} calls, got {len(part)} messages: add "
                    "or remove messages of the role tool"
                )
            said += [dict(message) for message in part]
            if thinks and form.rewrites[bool(calls)]:
                thinks = False
                ids, kept_count = form.rewritten(read_tokens(prompt_ids, turns, observations), problem, said)
            observations.append(ObservedTokens(sum(map(len, turns)), ids, kept_count))
    return joined(turns, observations, Episode((), tuple(dict(message) for message in messages)))
