"""Episodes: completions of several turns, between which an environment answers.

A row of the decoding is held by a turn, not by an episode: while a tool runs, the row serves others. When the answer
is there, the next turn enters the queue before all that have not begun, so that what is kept of it is soon read on.
Sampled ids are kept as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from threading import Condition
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.config.run import RunConfig
from grouprl.forward.prefix import same_tokens
from grouprl.leaves import leaf
from grouprl.models.load import context_length, end_token_ids
from grouprl.rollout.decoding import Finished, Unit, UnitQueue
from grouprl.rollout.engine import Request
from grouprl.rollout.sampler import row_key
from grouprl.tasks import Task
from grouprl.tasks.base import converses
from grouprl.types import Completion, Episode, ObservedTokens, Problem, UserError

_TICK = 0.05  # seconds that an idle decoding waits at once, so that a stop of the run reaches it


@dataclass(frozen=True)
class Answer:
    """What follows a turn: the tokens that the policy is shown next, or the episode, which is over."""

    token_ids: tuple[int, ...] = ()
    kept: int | None = None  # of the tokens read so far, prompt included, those that stay; None = all
    most: int | None = None  # tokens of the next turn; None = those of any turn
    episode: Episode | None = None  # its observations and ends are filled in by the engine


class Conversation(Protocol):
    """The environments of a run; `grouprl.environments` makes one."""

    most_tokens: int  # that a turn reads and writes after the prompt, observations included

    @property
    def forks(self) -> bool:
        """Whether a turn may read another beginning than the prompt."""
        ...

    def answer(
        self, request: Request, turns: Sequence[Completion], observations: Sequence[ObservedTokens]
    ) -> Future[Answer]:
        """Answers the last turn of an episode, in another thread.

        Args:
            request: of the episode's group; the completions' index says which episode it is.
            turns: what the policy wrote in each turn so far.
            observations: what it was shown between them.
        """
        ...


class Conversations(Protocol):
    """What opens the conversations of a run, before a tokenizer is there."""

    gives_reward: bool  # whether an environment gives one, which counts beside those of the run
    has_objects: bool  # whether rewards get the environments' objects

    def opened(self, problem: Problem) -> Problem:
        """The problem with the tools, and with what an environment adds to its prompt."""
        ...

    def bind(
        self, tokenizer: PreTrainedTokenizerBase, end_ids: Sequence[int], *, max_tokens: int, context: int
    ) -> Conversation:
        """The conversation in the format of a tokenizer's chat template.

        Args:
            tokenizer: the policy's tokenizer.
            end_ids: the tokens that end a turn.
            max_tokens: the longest turn.
            context: the most tokens that the policy reads.

        Raises:
            UserError: the template cannot render tools.
        """
        ...


def longest_completion(config: RunConfig, task: Task) -> int:
    """Most tokens after a prompt, in a single turn or in a whole episode with what the policy is shown."""
    longest = config.rollout.max_tokens
    return config.environment.longest(longest) if has_turns(config, task) else longest


def has_turns(config: RunConfig, task: Task) -> bool:
    """Whether completions are episodes, of several turns."""
    return config.environment.given or converses(task)


def open_conversations(config: RunConfig, task: Task) -> AbstractContextManager[Conversations | None]:
    """Starts the environments of a run, which end with the block; None where neither configuration nor task has any.

    Raises:
        UserError: they cannot be used, or the run samples elsewhere.
    """
    if not has_turns(config, task):
        return nullcontext()
    if config.rollout.engine.name != "native" or config.cluster.backend != "none":
        raise UserError(
            "environment: expected rollout.engine.name=native and cluster.backend=none with tools or an environment, "
            f"got {config.rollout.engine.name} and {config.cluster.backend}: set both"
        )
    if config.rollout.regex is not None:
        raise UserError("rollout.regex: expected none with tools or an environment, got one: remove one of them")
    opened: AbstractContextManager[Conversations] = leaf("conversations")(config, task)
    return opened


def bound(
    conversations: Conversations | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_tokens: int
) -> Conversation | None:
    """The conversation of a model whose turns have at most `max_tokens` tokens; None = completions have one turn."""
    if conversations is None:
        return None
    ends, context = end_token_ids(model, tokenizer), context_length(model)
    return conversations.bind(tokenizer, ends, max_tokens=max_tokens, context=context)


class EpisodeQueue(UnitQueue):
    """The turns that no decoding has admitted yet. It lasts until the last episode is over."""

    def __init__(
        self, units: Sequence[Unit], requests: Sequence[Request], conversation: Conversation, seed: int
    ) -> None:
        super().__init__(units)
        self._requests, self._conversation, self._seed = requests, conversation, seed
        self._turns: dict[tuple[int, int], list[Completion]] = {}
        self._observations: dict[tuple[int, int], list[ObservedTokens]] = {}
        self._unfinished = sum(len(unit.keys) for unit in units)
        self._over: Finished = []
        self._error: BaseException | None = None
        self._changed = Condition(self._lock)

    def __bool__(self) -> bool:
        return self._unfinished > 0

    def ended(self, finished: Finished) -> Finished:
        """Takes turns that ended, and lets the environments answer; gives the episodes that are over by now."""
        for request_index, turn in finished:
            key = request_index, turn.index
            turns = self._turns.setdefault(key, [])
            turns.append(turn)
            shown = self._observations.setdefault(key, [])
            answer = self._conversation.answer(self._requests[request_index], tuple(turns), tuple(shown))
            answer.add_done_callback(partial(self._queue_next_turn, key))
        with self._lock:
            if self._error is not None:
                raise self._error
            over, self._over = self._over, []
            self._unfinished -= len(over)
        return over

    def wait(self) -> None:
        """Waits a moment for a turn or an end, where a decoding has nothing else to do."""
        with self._changed:
            if not self._units and not self._over:
                self._changed.wait(_TICK)

    def _queue_next_turn(self, key: tuple[int, int], future: Future[Answer]) -> None:
        """Takes the answer to a turn: the episode is over, or its next turn enters before all that have not begun."""
        turns, observations = self._turns[key], self._observations[key]
        with self._changed:
            error = RuntimeError("an answer was cancelled") if future.cancelled() else future.exception()
            if error is not None:
                self._error = self._error or error
            elif (answer := future.result()).episode is not None:
                self._over.append((key[0], joined(turns, observations, answer.episode)))
            else:
                observations.append(ObservedTokens(sum(map(len, turns)), answer.token_ids, answer.kept))
                request = self._requests[key[0]]
                stream = f"{request.stream}/turn {len(turns)}"  # the same numbers whatever ran beside the episode
                row = row_key(self._seed, stream, request.problem.id, key[1])
                read = read_tokens(request.prompt_ids, turns, observations)
                begin = same_tokens((request.prompt_ids, read))  # a fork may keep only a part of the prompt
                later = sum(bool(unit.written) for unit in self._units)
                unit = Unit(key[0], read[:begin], (row,), key[1], read[begin:], answer.most)
                self._units.insert(later, unit)
            self._changed.notify_all()


def read_tokens(
    prompt_ids: Sequence[int], turns: Sequence[Completion], observations: Sequence[ObservedTokens]
) -> tuple[int, ...]:
    """What the policy reads after these turns, each followed by an observation; the last one may have none yet."""
    read = list(prompt_ids)
    for turn, shown in zip_longest(turns, observations):
        read += turn.token_ids
        if shown is not None:
            read = [*read[: shown.kept], *shown.token_ids]
    return tuple(read)


def joined(turns: Sequence[Completion], observations: Sequence[ObservedTokens], episode: Episode) -> Completion:
    """The completion of an episode: the tokens of all its turns. Its text is theirs, one after the other."""
    ends, at = [], -1
    for turn in turns:
        ends.append(at := at + len(turn))
    return replace(
        turns[-1],
        token_ids=tuple(token for turn in turns for token in turn.token_ids),
        logprobs=tuple(value for turn in turns for value in turn.logprobs),
        plain_logprobs=tuple(value for turn in turns for value in turn.plain_logprobs),
        text="\n".join(turn.text for turn in turns),
        weights_version=turns[0].weights_version,
        episode=replace(episode, observations=tuple(observations), ends=tuple(ends)),
    )
