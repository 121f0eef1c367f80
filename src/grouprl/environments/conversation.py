"""The conversations of a run: after each turn of the policy, calls go to the episode's environment.

The loop belongs to GroupRL: environments never see tokens, and what the policy sampled is never rendered again.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.config.run import EnvironmentConfig, RunConfig
from grouprl.environments.agents import AgentEnvironment, AgentSource, added_messages, answer_of, written_anew
from grouprl.environments.base import Call, Environment, EnvironmentSource, Fault, Observation, Opening
from grouprl.environments.calls import Entry
from grouprl.environments.formats import ToolFormat
from grouprl.environments.processes import ProcessSource
from grouprl.environments.shapes import source_of
from grouprl.forward.prefix import same_tokens
from grouprl.rollout.engine import Request
from grouprl.rollout.episodes import Answer, read_tokens
from grouprl.tasks import Task
from grouprl.types import Completion, Episode, Message, ObservedTokens, Problem, StopReason, ToolCall, UserError

_THREADS = 512  # answers that wait at once; a thread starts when it is needed
_FAILURES = frozenset({Fault.TIMEOUT, Fault.CRASH})  # of the tool; the others are mistakes of the policy or of the tool


@contextmanager
def open_conversations(config: RunConfig, task: Task) -> Iterator[ToolConversations]:
    """Starts the environments of a run; its end closes them.

    Raises:
        UserError: the tools or the environment cannot be used.
    """
    source = source_of(config.environment, task).ready()
    conversations = ToolConversations(source, config.environment)
    try:
        yield conversations
    finally:
        conversations.close()


class ToolConversations:
    """The environments of a run, before a tokenizer is there."""

    def __init__(self, source: EnvironmentSource | AgentSource, settings: EnvironmentConfig) -> None:
        self.source, self.settings = source, settings
        self.begins: dict[str, _Beginning] = {}  # by the problem's id
        self._bound: list[ToolConversation] = []
        self.gives_reward = not isinstance(source, ProcessSource) or source.gives_reward
        self.has_objects = isinstance(source, ProcessSource) and source.has_objects

    def bind(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Sequence[int],
        *,
        max_tokens: int,
        context: int = 1 << 30,
    ) -> ToolConversation:
        """The conversations of one model, whose tokenizer writes them; as `grouprl.rollout.episodes.Conversations`."""
        conversation = ToolConversation(self, tokenizer, end_ids, max_tokens, context)
        self._bound.append(conversation)
        return conversation

    def close(self) -> None:
        """Ends all environments."""
        for conversation in self._bound:
            conversation.close()
        self.source.close()

    def opened(self, problem: Problem) -> Problem:
        """The problem with the tools, and with what `reset` adds to its prompt.

        Raises:
            UserError: the environment cannot begin, or the chat template cannot write its tools.
        """
        if (begins := self.begins.get(problem.id)) is None:
            environment = self.source.open(problem)
            try:
                opening = environment.reset(problem, _seed(problem))
                tools = tuple(environment.tools)
            finally:
                environment.close()
            prompt, plain_from = _with_opening(problem, opening)
            opened = replace(problem, prompt=tuple(prompt), tools=tools, plain_from=plain_from)
            for conversation in self._bound[-1:]:
                conversation.format_of(opened)  # a template that cannot write tools is refused before a turn is sampled
            begins = self.begins[problem.id] = _Beginning(problem, opening, opened)
        return begins.opened


def _with_opening(problem: Problem, opening: Opening) -> tuple[Sequence[Message], Mapping[int, int]]:
    """The prompt with what `reset` adds, and where in it an environment's text stands, as `Problem.plain_from`."""
    if opening.prompt is not None:
        return opening.prompt, dict.fromkeys(range(len(opening.prompt)), 0)
    if isinstance(problem.prompt, str):
        raise UserError(
            f"{problem.where}: expected a prompt of chat messages for a task with tools or an environment, got plain "
            "text: use a task with messages, or a prompt such as [{'role': 'user', 'content': '...'}]"
        )
    messages, count = [*problem.prompt], len(problem.prompt)
    plain_from = dict.fromkeys(range(count, count + len(opening.messages)), 0)
    if opening.text:
        content = messages[-1]["content"]
        messages[-1] = {**messages[-1], "content": f"{content}{opening.separator if content else ''}{opening.text}"}
    if text := opening.text.lstrip():
        plain_from[count - 1] = len(messages[-1]["content"]) - len(text)
    return (*messages, *opening.messages), plain_from


def _seed(problem: Problem) -> int:
    """The seed of a problem's resets: all its episodes begin alike, and the problems differ."""
    return zlib.crc32(problem.id.encode())


@dataclass(frozen=True)
class _Beginning:
    """How the episodes of a problem begin."""

    problem: Problem  # as the task has it
    opening: Opening
    opened: Problem


@dataclass
class _Live:
    """An episode that is going on."""

    environment: Environment | AgentEnvironment
    started: float
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)  # the same, but calls as the policy wrote them
    thinks: bool = False  # whether the policy still reads a thought of its own
    calls: list[ToolCall] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    after_results: bool = False  # whether the next turn follows results of tools
    ended: str = ""
    invalid: str = ""

    def show(self, message: dict[str, Any]) -> None:
        """Adds a message that the policy did not write."""
        self.messages.append(message)
        self.said.append(message)


class ToolConversation:
    """Answers the turns of one model's episodes; as `grouprl.rollout.episodes.Conversation`."""

    def __init__(
        self,
        of_run: ToolConversations,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Sequence[int],
        max_tokens: int,
        context: int,
    ) -> None:
        if (longest := of_run.settings.longest(max_tokens)) < max_tokens:
            raise UserError(
                f"environment.max_tokens: expected at least rollout.max_tokens={max_tokens}, one turn, got "
                f"{longest}: raise it"
            )
        self.most_tokens, self._context = longest, context
        self._source, self._settings, self._begins = of_run.source, of_run.settings, of_run.begins
        self._max_tokens, self._tokenizer, self._end_ids = max_tokens, tokenizer, end_ids
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="environment")
        self._live: dict[tuple[str, str, int], _Live] = {}

    @property
    def forks(self) -> bool:
        """Whether a turn may not continue the last: an agent may ask anything, a template may drop thoughts."""
        beginnings = list(self._begins.values())
        if any(beginning.opening.prompt is not None for beginning in beginnings):
            return True
        return any(any(self.format_of(beginning.opened).rewrites) for beginning in beginnings)

    def answer(
        self, request: Request, turns: Sequence[Completion], observations: Sequence[ObservedTokens]
    ) -> Future[Answer]:
        """Lets the environment answer the last turn, in a thread; as `grouprl.rollout.episodes.Conversation`."""
        return self._threads.submit(self._answer, request, turns, observations)

    def close(self) -> None:
        """Ends all environments that are still open."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for live in list(self._live.values()):
            live.environment.close()
        self._live.clear()

    def _answer(self, request: Request, turns: Sequence[Completion], observations: Sequence[ObservedTokens]) -> Answer:
        key = request.stream, request.problem.id, turns[-1].index
        live = self._live.get(key)
        if live is None:
            begins = self._begins[request.problem.id]
            live = self._live[key] = _Live(self._source.open(request.problem), time.monotonic())
            # The prompt was made of the first opening: with another one the policy would have read of another world.
            if (opening := live.environment.reset(begins.problem, _seed(request.problem))) != begins.opening:
                raise UserError(
                    f"environment of {request.problem.where}: expected `reset` to begin every episode of a problem "
                    f"alike, got {opening.text!r:.80} after {begins.opening.text!r:.80}: draw with the seed that reset "
                    "gets, or from the problem's columns"
                )
        form, read = self.format_of(request.problem), read_tokens(request.prompt_ids, turns, observations)
        turn = turns[-1]
        text, after_results = form.turn_text(turn.token_ids), live.after_results
        live.said.append({"role": "assistant", "content": text})
        live.thinks |= form.thinks(text, after_results=after_results)
        cut = turn.stop_reason is StopReason.LENGTH
        entries = [] if cut else form.calls(text, after_results=after_results)
        if isinstance(live.environment, AgentEnvironment) and not all(isinstance(entry, Call) for entry in entries):
            entries = []  # the agent reads what is no call as text
        live.after_results = bool(entries)
        said = form.said(text, after_results=after_results) if entries else text
        message: dict[str, Any] = {"role": "assistant", "content": said}
        calls = [entry for entry in entries if isinstance(entry, Call)]
        functions = [{"name": call.tool, "arguments": dict(call.arguments)} for call in calls]
        if calls:
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        live.messages.append(message)
        live.rewards.append(None)
        asks_tools = bool(entries) and not isinstance(live.environment, AgentEnvironment)
        is_last, message_count = len(turns) >= self._settings.turns, len(live.messages)
        live.ended = "length" if cut else "turns" if asks_tools and is_last else ""  # nobody would read the results
        ids: tuple[int, ...] = ()
        kept_count = None
        if not live.ended and isinstance(live.environment, AgentEnvironment):
            try:
                ids, kept_count = self._ask_agent(live, live.environment, calls, turns, read, request.problem)
            except UserError as error:  # a request that the template cannot write harms its own episode alone
                self._judge(live, Observation(str(error), fault=Fault.EXCEPTION))
                live.ended = live.ended or Fault.EXCEPTION.value
        elif not live.ended:
            ids = self._respond(live, entries, turns[-1], len(turns) - 1, form)
            if not live.ended and live.thinks and form.rewrites[live.after_results]:
                ids, kept_count = form.rewritten(read, request.problem, live.said)
                live.thinks = False
        next_ids = (*read[:kept_count], *ids)
        used = len(next_ids) - same_tokens((request.prompt_ids, next_ids))
        left = min(self.most_tokens - used, self._context - len(next_ids))
        if not live.ended and left < 1:
            live.ended = "tokens"
            if asks_tools:
                del live.messages[message_count:]  # results that nobody reads
        if not live.ended and is_last:
            live.ended = "turns"
        if not live.ended and time.monotonic() - live.started > self._settings.episode_seconds:
            live.ended = "seconds"
        if not live.ended:
            return Answer(ids, kept_count, min(left, self._max_tokens))
        del self._live[key]
        try:
            verdict = live.environment.verdict()
        finally:
            live.environment.close()
        return Answer(
            episode=Episode(
                observations=(),
                messages=tuple(live.messages),
                calls=tuple(live.calls),
                turn_rewards=tuple(live.rewards),
                reward=verdict.reward,
                ended=live.ended,
                invalid=live.invalid or verdict.reason,
                attributes=verdict.attributes,
                held=verdict.held,
            )
        )

    def format_of(self, problem: Problem) -> ToolFormat:
        """The format of a problem's conversations.

        Raises:
            UserError: the chat template cannot write them.
        """
        return ToolFormat.of(self._tokenizer, problem.tools, self._end_ids)

    def _respond(
        self, live: _Live, entries: Sequence[Entry], turn: Completion, turn_index: int, form: ToolFormat
    ) -> tuple[int, ...]:
        """Lets the environment answer a turn; gives the tokens to append, or ends the episode."""
        assert not isinstance(live.environment, AgentEnvironment)
        ended = turn.stop_reason is StopReason.END
        if entries:
            if len(live.calls) + len(entries) > self._settings.calls:
                live.ended = "calls"
                return ()
            observations = iter(live.environment.call([entry for entry in entries if isinstance(entry, Call)]))
            results = []
            for entry in entries:
                if isinstance(entry, Call):
                    observation, name = next(observations), entry.tool
                    arguments = json.dumps(entry.arguments, ensure_ascii=False)
                else:
                    observation, name, arguments = Observation(entry.reason, fault=entry.fault), "", entry.text
                text, fault = observation.text, observation.fault or ""
                live.calls.append(ToolCall(turn_index, name, arguments, text, observation.seconds, fault))
                live.show({"role": "tool", "name": name, "content": text})
                results.append((entry, text))
                self._judge(live, observation)
            return () if live.ended else form.observation_ids(results, ended=ended)
        reply = live.environment.reply(live.said[-1]["content"])
        if reply is None:
            live.ended = "finished"
            return ()
        self._judge(live, reply)
        live.show({"role": "user", "content": reply.text})
        return form.message_ids("user", reply.text, ended=ended)

    def _ask_agent(
        self,
        live: _Live,
        agent: AgentEnvironment,
        calls: Sequence[Call],
        turns: Sequence[Completion],
        read: Sequence[int],
        problem: Problem,
    ) -> tuple[tuple[int, ...], int | None]:
        """Gives a turn and its calls to an agent; the tokens to append for its next request, and how many stay before.

        Where it only adds the results of its calls, or a message, the tokens are those of the template's difference.
        With any other history the policy reads the whole request.
        """
        if len(live.calls) + len(calls) > self._settings.calls:
            live.ended = "calls"
            return (), None
        before, tools = [*agent.messages, live.messages[-1]], agent.tools
        observation = agent.ask(answer_of(live.messages[-1], turns[-1], read))
        self._judge(live, observation)
        if observation.fault is not None or live.ended:  # an agent that failed cannot be told
            live.ended = live.ended or str(observation.fault)
            return (), None
        added, shares_all = added_messages(before, agent.messages)
        for message in added:
            if message["role"] != "assistant":  # which would count as a turn of the policy
                live.show(message)
        roles, grows = [message["role"] for message in added], shares_all and tools == agent.tools
        live.after_results = agent.messages[-1]["role"] == "tool"
        answers = grows and bool(calls) and roles == ["tool"] * len(calls)
        pairs = [(call, message["content"]) for call, message in zip(calls, added, strict=True)] if answers else []
        live.calls += [
            ToolCall(len(turns) - 1, call.tool, json.dumps(call.arguments), text, observation.seconds)
            for call, text in pairs
        ]
        form = self.format_of(replace(problem, tools=tuple(agent.tools)))
        ended = turns[-1].stop_reason is StopReason.END
        if not (live.thinks and form.rewrites[live.after_results]):
            if answers:
                return form.observation_ids(pairs, ended=ended), None
            if grows and not calls and roles == ["user"]:
                return form.message_ids("user", added[0]["content"], ended=ended), None
        live.thinks = False
        request = replace(problem, prompt=(), tools=tuple(agent.tools))
        return form.rewritten(read, request, written_anew(form, agent.messages))

    def _judge(self, live: _Live, observation: Observation) -> None:
        """Notes the reward of a turn, and what a fault means for the episode."""
        if observation.reward is not None:
            live.rewards[-1] = observation.reward + (live.rewards[-1] or 0.0)
        if observation.done:
            live.ended = live.ended or "finished"
        if observation.fault is not None:
            choice = self._settings.failures if observation.fault in _FAILURES else self._settings.mistakes
            if choice != "tell":
                live.ended = observation.fault.value
            if choice == "invalid":
                live.invalid = f"{observation.fault.value}: {observation.text}"
