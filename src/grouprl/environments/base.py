"""What an environment is: the protocol that every shape of a user's code is brought into, and its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from grouprl.types import Message, Problem

Schema = Mapping[str, Any]
"""A tool's JSON schema, as transformers' `get_json_schema` makes it and chat templates take it."""


NOT_AS_EXPECTED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError)
"""Errors of reading JSON that somebody else wrote, in another form than expected."""


class Fault(StrEnum):
    """How a tool call failed; each is counted by itself."""

    FORMAT = "format"  # what the policy wrote is no call that can be read, such as broken JSON
    UNKNOWN_TOOL = "unknown_tool"
    ARGUMENTS = "arguments"  # missing, unknown or of another type than the schema says
    EXCEPTION = "exception"  # the tool raised
    TIMEOUT = "timeout"  # the tool took too long, and its process was killed
    CRASH = "crash"  # the tool's process died


@dataclass(frozen=True)
class Call:
    """A tool call that the policy wrote."""

    tool: str
    arguments: Mapping[str, Any]
    id: str = field(default="", compare=False)  # that the policy gave it; most formats have none


@dataclass(frozen=True)
class Opening:
    """What `reset` adds to a problem's prompt; the same for all completions of a group."""

    text: str = ""  # added to the last message
    separator: str = field(default="\n\n", compare=False)  # before the text, where the message has some; TRL has none
    messages: tuple[Message, ...] = ()  # added after the prompt's messages
    prompt: tuple[Message, ...] | None = None  # of an agent, its first request: it takes the place of the prompt


@dataclass(frozen=True)
class Observation:
    """What the policy is shown after a call or a message."""

    text: str
    reward: float | None = None  # of this turn, where the environment gives one
    done: bool = False  # whether the episode is over
    fault: Fault | None = None  # None = the call succeeded; else `text` says what was wrong
    seconds: float = 0.0  # that the tool took


@dataclass(frozen=True)
class Verdict:
    """What an environment says of a whole episode."""

    reward: float | None = None  # None = the environment gives none, or failed to; never 0
    reason: str = ""  # why it failed; then the episode is invalid
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Of the environment's object, for the record: the plain public ones, such as `reward`."""
    held: str | None = field(default=None, compare=False, repr=False)
    """A copy of the object, packed, in base64, for rewards; None = there is none."""


class Environment(Protocol):
    """The world of one episode. `close` is called once, however the episode ends; after it nothing is called.

    Methods may block; the loop calls each in a thread. They raise nothing: a failure is an `Observation` with a fault,
    or a `Verdict` without a reward.
    """

    @property
    def tools(self) -> Sequence[Schema]:
        """The tools that the policy may call; empty for a text game."""
        ...

    def reset(self, problem: Problem, seed: int) -> Opening:
        """Begins the episode. The same problem and seed give the same opening.

        Raises:
            UserError: the environment cannot begin, which is the user's to fix.
        """
        ...

    def call(self, calls: Sequence[Call]) -> list[Observation]:
        """Makes the calls of one turn side by side; gives one observation for each, in their order."""
        ...

    def reply(self, message: str) -> Observation | None:
        """Answers a turn without calls; None = the environment takes no messages, so the episode is over."""
        ...

    def verdict(self) -> Verdict:
        """The reward of the episode so far; without a reward where the environment gives none."""
        ...

    def close(self) -> None:
        """Releases what the episode holds."""
        ...


class EnvironmentSource(Protocol):
    """Makes environments of one kind, each in a process of its own where they run a user's code."""

    def open(self, problem: Problem) -> Environment:
        """Makes the environment of one episode of a problem; it is not reset yet."""
        ...

    def close(self) -> None:
        """Ends every process."""
        ...


class JudgedByEnvironment:
    """The rewards of a `Task` whose environment gives the verdict."""

    verifier = "environment"
    default_rewards: ClassVar[Mapping[str, float]] = {"environment": 1.0}
    default_step_rewards: ClassVar[Mapping[str, float]] = {}
    own_rewards: ClassVar[Mapping[str, Callable[..., Any]]] = {}

    def gold(self, problem: Problem) -> str | None:
        """None: no single message solves a problem."""
        return None

    def traits(self, text: str) -> Mapping[str, bool]:
        """None."""
        return {}


def exchange(tool: str, arguments: Mapping[str, str], result: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The messages of a call and of its result, as chat templates take them."""
    call = {"type": "function", "function": {"name": tool, "arguments": dict(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "name": tool, "content": result}
