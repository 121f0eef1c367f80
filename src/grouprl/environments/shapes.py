"""The shapes of a user's code that become environments: functions, TRL's classes of tools, text games."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

from grouprl.config.code_files import read_code
from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.agents import AgentSource
from grouprl.environments.base import Schema
from grouprl.environments.endpoint import agent_maker
from grouprl.environments.guest import EnvironmentWork
from grouprl.environments.openenv import OpenEnvSource
from grouprl.environments.processes import ProcessSource
from grouprl.rewards.workers.frames import ParcelError, pack
from grouprl.rewards.workers.zygote import Source
from grouprl.tasks import Task
from grouprl.types import UserError


def source_of(settings: EnvironmentConfig, task: Task) -> ProcessSource | OpenEnvSource | AgentSource:
    """The environments that the configuration names; where it names none, those of the task.

    Raises:
        UserError: as `open_tools`.
    """
    if settings.url is not None:
        return OpenEnvSource(settings.url, settings)
    if settings.game is not None:
        return open_games(settings.game, limits=settings)
    if settings.agent is not None:
        return open_agents(settings.agent, limits=settings)
    if settings.given:
        return open_tools(settings.tools, settings.factory, limits=settings)
    if (game := getattr(task, "game", None)) is not None:
        return open_games(game, limits=settings)
    return open_tools(getattr(task, "tools", ()), getattr(task, "environment", None), limits=settings)


def tool_schemas(task: Task) -> tuple[Schema, ...]:
    """The schemas of a task's tools, for prompts that show them."""
    with closing(source_of(EnvironmentConfig(), task)) as source:
        return tuple(source.open(task.problems("train")[0]).tools)


_LONGEST_REQUEST = 16 << 20  # characters of what an agent asks

Code = Callable[..., Any] | str
"""A Python object, or its place as `FILE.py:NAME`."""


def open_tools(
    tools: Sequence[Code] = (),
    environments: Code | Mapping[str, Code] | None = None,
    *,
    limits: EnvironmentConfig | None = None,
) -> ProcessSource:
    """Environments of functions, of a class, or of both; the form of TRL's `tools` and `environment_factory`.

    Args:
        tools: functions or coroutine functions without state, with type hints and a Google docstring. A place may also
            name a list of them.
        environments: a class, or a function, that makes an object without arguments. The object has
            `reset(**row) -> str | list | None`; its other public methods are tools; an optional `get_reward()` gives
            the episode's reward. Of several by name, a problem's column `environment` names its own.
        limits: the limits of an episode.

    Raises:
        UserError: an object cannot be sent to another process, or a file cannot be read. `ready` of what is returned
            raises it for what is wrong in the code.
    """
    return _source(tools, environments, is_game=False, limits=limits)


def open_games(games: Code | Mapping[str, Code], *, limits: EnvironmentConfig | None = None) -> ProcessSource:
    """Text games, which answer messages.

    Args:
        games: makes a game without arguments: `reset(...) -> observation`, or `(observation, info)`, and
            `step(text) -> (observation, reward, terminated, info)`, or with `truncated` before `info` as in gymnasium,
            or a dict with `observations`, `reward` and `done` as in skyrl-gym. Several by name as in `open_tools`.
        limits: the limits of an episode.

    Raises:
        UserError: as `open_tools`.
    """
    return _source((), games, is_game=True, limits=limits)


def open_agents(agent: Code, *, limits: EnvironmentConfig | None = None) -> AgentSource:
    """Agents that own their loop.

    Args:
        agent: a function or coroutine function of the problem's prompt and columns, as far as it accepts them. Each
            episode runs it in a process of its own, where OPENAI_BASE_URL and OPENAI_API_KEY lead to the policy. It may
            return the episode's reward.
        limits: the limits of an episode.

    Raises:
        UserError: as `open_tools`.
    """
    limits = limits or EnvironmentConfig()
    requests = limits.model_copy(update={"result_characters": _LONGEST_REQUEST})
    return AgentSource(_source((), agent, is_game=True, limits=requests, wrap=agent_maker))


def _source(
    tools: Sequence[Code],
    makers: Code | Mapping[str, Code] | None,
    *,
    is_game: bool,
    limits: EnvironmentConfig | None,
    wrap: Callable[[Callable[..., Any]], Callable[[], Any]] | None = None,
) -> ProcessSource:
    limits = limits or EnvironmentConfig()
    named = makers if isinstance(makers, Mapping) else {} if makers is None else {"": makers}
    work = EnvironmentWork(
        [_code("tool", "", tool) for tool in tools],
        [(key, *_code("environment", key, maker)) for key, maker in named.items()],
        is_game,
        limits.memory_mib,
        limits.result_characters,
        wrap,
    )
    return ProcessSource(work, limits)


def _code(kind: str, key: str, code: Code) -> tuple[str, Source]:
    """Its name in errors, and what the zygote loads."""
    if not isinstance(code, str):
        name = f"{kind} {key or getattr(code, '__name__', type(code).__name__)}"
        # The names in hints that are text (`from __future__ import annotations`) do not travel with code that is sent.
        # Other modules than the code's own are imported by their names, with all that they have.
        classes = code.__mro__ if isinstance(code, type) else ()
        for function in (code, *(member for part in classes for member in vars(part).values())):
            if isinstance(function, FunctionType) and function.__module__ == code.__module__:
                with suppress(NameError, SyntaxError, TypeError):  # such a tool is refused where its schema is read
                    function.__annotations__ = get_type_hints(function, include_extras=True)
        try:
            return name, pack(code)
        except ParcelError as error:
            raise UserError(
                f"{name}: expected an object that can be sent to another process, got {error}: write it in a file, and "
                "give FILE.py:NAME"
            ) from error
    file, _, member = code.rpartition(":")
    if not file.endswith(".py") or not member.isidentifier():
        raise UserError(f"{kind}: expected FILE.py:NAME, got {code!r}: name a Python file and what is in it")
    return f"{kind} {code}", (file, member, {}, read_code(Path(file)))
