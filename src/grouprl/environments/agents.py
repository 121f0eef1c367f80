"""Agents that own their loop, such as a program with tools of its own: they ask the policy over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from grouprl.environments.base import Call, Observation, Opening, Schema, Verdict
from grouprl.environments.formats import ToolFormat
from grouprl.environments.processes import ProcessEnvironment, ProcessSource
from grouprl.types import Completion, Problem, StopReason

Messages = list[dict[str, Any]]


class AgentSource:
    """Makes the agents of a run; each has a process and an address of its own.

    Args:
        games: makes the agents as games of `grouprl.environments.endpoint`.
    """

    def __init__(self, games: ProcessSource) -> None:
        self._games = games

    def ready(self) -> Self:
        """Waits until the code is loaded. Raises UserError if it cannot be."""
        self._games.ready()
        return self

    def open(self, problem: Problem) -> AgentEnvironment:
        """Makes the agent of an episode, which starts with `reset`."""
        return AgentEnvironment(self._games.open(problem))

    def close(self) -> None:
        """Ends every process."""
        self._games.close()


class AgentEnvironment:
    """The agent of one episode: it asks with all messages that the policy shall read, and gets one turn."""

    def __init__(self, game: ProcessEnvironment) -> None:
        self._game = game
        self.tools: Sequence[Schema] = ()  # of its last request
        self.messages: Messages = []  # of its last request
        self._waits = False  # for a turn of the policy

    def reset(self, problem: Problem, seed: int) -> Opening:
        """Starts the agent; its first request is the prompt. Raises UserError if it makes none."""
        self._read_request(self._game.reset(problem, seed).text)
        return Opening(prompt=tuple(self.messages))

    def ask(self, answer: Mapping[str, Any]) -> Observation:
        """Gives the policy's turn to the agent; until its next request, or its end."""
        observation = self._game.reply(json.dumps(answer))
        assert observation is not None  # it is a game
        self._waits = False
        if observation.fault is None and not observation.done:
            self._read_request(observation.text)
        return observation

    def verdict(self) -> Verdict:
        """The reward that the agent returned; none where it returned none, 0 where the policy's limits ended it."""
        return Verdict(0.0) if self._waits else self._game.verdict()

    def close(self) -> None:
        """Ends the agent's process."""
        self._game.close()

    def _read_request(self, request: str) -> None:
        body, self._waits = json.loads(request), True
        self.tools = tuple(body["tools"])
        self.messages = body["messages"]


def answer_of(message: Mapping[str, Any], turn: Completion, read: Sequence[int]) -> dict[str, Any]:
    """The policy's turn as an agent gets it, with its token ids and log-probs.

    Args:
        message: the turn as it is recorded.
        turn: the turn.
        read: token ids that the policy had read, those of the turn included.
    """
    calls = []
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}
        calls.append({"id": f"call{index:05d}", "type": "function", "function": function})
    reason = "length" if turn.stop_reason is StopReason.LENGTH else "tool_calls" if calls else "stop"
    return {
        "message": {"role": "assistant", "content": message["content"], **({"tool_calls": calls} if calls else {})},
        "finish_reason": reason,
        "prompt_token_ids": list(read[: len(read) - len(turn)]),
        "token_ids": list(turn.token_ids),
        "logprobs": list(turn.logprobs),
    }


def added_messages(before: Sequence[Mapping[str, Any]], after: Messages) -> tuple[Messages, bool]:
    """The messages of a request after those that it shares with what was said, and whether it shares all of these."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((index for index, (said, sent) in pairs if said != sent), min(len(before), len(after)))
    return after[same:], same == len(before)


def written_anew(form: ToolFormat, messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Messages with the calls of the assistant in their contents, as a policy writes them.

    Raises:
        UserError: the chat template does not write them.
    """
    written = []
    for message in messages:
        functions = [call["function"] for call in message.get("tool_calls", ())]
        calls = [Call(function["name"], function["arguments"]) for function in functions]
        written.append({"role": message["role"], "content": form.written(message["content"], calls)})
    return written
