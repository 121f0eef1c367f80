"""What runs in the processes of environments: a user's code is loaded and described, called, and its results written.

Replies are JSON. Nothing here imports torch; transformers is imported in a process that only writes the tools' schemas.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import math
import os
import random
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from grouprl.environments.base import Fault
from grouprl.rewards.calls import describe
from grouprl.rewards.workers.frames import pack_object, receive_frame, send_frame, unpack
from grouprl.rewards.workers.zygote import (
    ProcessOutput,
    Source,
    adopt_orphans,
    dumps,
    fork_once,
    limit_memory,
    load_object,
)
from grouprl.types import UserError

_LONE = re.compile("[\ud800-\udfff]")  # half of a character, which no tokenizer takes
_RESERVED = ("reset", "get_reward")  # methods of a class of tools that are no tools
_LONGEST_ATTRIBUTE = 1000  # characters
_LARGEST_OBJECT = 4 << 20  # bytes of an object that rewards get
_OWN_NAMES = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

Reply = dict[str, Any]


@dataclass
class EnvironmentWork:
    """The user's code of an environment, and the limits of its processes."""

    functions: Sequence[tuple[str, Source]]  # plain tools, or lists of them, each with its name in errors
    factories: Sequence[tuple[str, str, Source]]  # the key of the problems, the name in errors, what makes the object
    is_game: bool
    memory_mib: int
    characters: int  # of a result
    wrap: Callable[[Callable[..., Any]], Callable[[], Any]] | None = None  # makes a maker of what is loaded
    tools: dict[str, Callable[..., Any]] = field(default_factory=dict)
    makers: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def load(self, report: Callable[[str], None]) -> Any:
        """Loads the code; gives the schemas of its tools and the names of those that are coroutine functions."""
        modules: dict[str, ModuleType] = {}
        for name, source in self.functions:
            report(name)
            loaded = _loaded(name, source, modules)
            for tool in loaded if isinstance(loaded, list | tuple) else [loaded]:
                _add(self.tools, getattr(tool, "__name__", repr(tool)), tool, name)
        for key, name, source in self.factories:
            report(name)
            loaded = _loaded(name, source, modules)
            loaded = loaded if self.wrap is None else self.wrap(loaded)
            self.makers |= loaded if isinstance(loaded, Mapping) else {key: loaded}
        # In a process of its own: building an object may start threads, and schemas need transformers.
        written = fork_once(lambda: dumps(self._described(report)).encode())
        try:
            described = json.loads(written)
        except ValueError:
            where = ", ".join([*(name for name, _ in self.functions), *(name for _, name, _ in self.factories)])
            raise UserError(
                f"{where}: expected code that can be built and described, got a process that ended: read its output"
            ) from None
        if "error" in described:
            raise UserError(described["error"])
        return described

    def _described(self, report: Callable[[str], None]) -> Reply:
        try:
            kinds = {"": self._kind("", self.tools)}
            for key, maker in self.makers.items():
                name = f"environment {key or getattr(maker, '__name__', type(maker).__name__)}"
                report(name)
                try:
                    built = maker()
                except BaseException as error:  # user code may raise anything
                    raise UserError(
                        f"{name}: expected a class or function that makes the environment without arguments, got "
                        f"{describe(error)}: fix it"
                    ) from error
                for needed in ("reset", "step") if self.is_game else ("reset",):
                    if not callable(getattr(built, needed, None)):
                        got = f"{type(built).__name__} without one"
                        raise UserError(f"{name}: expected a method `{needed}`, got {got}: add it to the class")
                gives = self.is_game or _has_reward(built)
                kinds[f"of {key}"] = self._kind(name, self._methods(name, built)) | {"gives_reward": gives}
            return kinds
        except UserError as error:
            return {"error": str(error)}

    def _methods(self, name: str, built: Any) -> dict[str, Callable[..., Any]]:
        if self.is_game:
            return {}
        methods = dict(self.tools)
        # In TRL's order; looked up in the class, because properties may run code.
        for method, _ in inspect.getmembers(type(built), predicate=inspect.isfunction):
            if method not in _RESERVED and not method.startswith("_"):
                _add(methods, method, getattr(built, method), name)
        if not methods:
            raise UserError(
                f"{name}: expected public methods, which are its tools, got {type(built).__name__} with "
                f"{', '.join(filter(None, ('reset', 'get_reward' * _has_reward(built))))} alone: write a method with "
                "type hints and a docstring; a text game with reset and step is environment.game"
            )
        return {method: tool for method, tool in methods.items() if method not in self.tools}

    def _kind(self, name: str, tools: Mapping[str, Callable[..., Any]]) -> Reply:
        prefix = f"{name}: " if name else ""
        return {
            "tools": [_schema(f"{prefix}tool {tool}", function) for tool, function in tools.items()],
            "async": [tool for tool, function in tools.items() if inspect.iscoroutinefunction(function)],
        }

    def work(self, channel: socket.socket) -> None:
        """Answers requests about one environment, or about the plain tools."""
        printed = ProcessOutput("a tool")
        adopt_orphans()  # what a tool starts in the background stays with its episode
        limit_memory(self.memory_mib)
        pid = os.getpid()
        guest = _Guest(self)
        while True:
            try:
                number, kind, arguments = unpack(receive_frame(channel))
            except (EOFError, OSError):
                return
            printed.begin_call()

            def send(index: int, reply: Reply, number: int = number) -> None:
                if os.getpid() != pid:  # a tool that forked returns in both processes
                    os._exit(0)
                printed.end_call()
                send_frame(channel, dumps(reply | {"request": number, "place": index}).encode())

            guest.answer(kind, arguments, send)


def _loaded(name: str, source: Source, modules: dict[str, ModuleType]) -> Any:
    try:
        return load_object(source, modules)
    except BaseException as error:  # user code may raise anything
        raise UserError(f"{name}: {describe(error)}: expected code that can be loaded; fix it") from error


def _add(tools: dict[str, Callable[..., Any]], name: str, tool: Callable[..., Any], where: str) -> None:
    if name in tools:
        raise UserError(f"{where}: expected tools of different names, got two of the name {name!r}: rename one")
    tools[name] = tool


def _has_reward(built: object) -> bool:
    return callable(getattr(type(built), "get_reward", None))


def _schema(where: str, tool: Callable[..., Any]) -> Any:
    remedy = "write type hints, and a Google docstring with a line for each argument under `Args:`"
    try:
        parameters = inspect.signature(tool).parameters.values()
    except (TypeError, ValueError):
        parameters = None
    if parameters is None or not hasattr(tool, "__name__"):
        raise UserError(f"{where}: expected a Python function, got {tool!r:.80}: write one around it")
    bare = [p.name for p in parameters if p.annotation is p.empty]
    unnamed = [p.name for p in parameters if p.kind not in _OWN_NAMES]
    if unnamed:
        raise UserError(f"{where}: expected arguments with names, got {', '.join(unnamed)}: name each argument")
    if bare or not inspect.getdoc(tool):
        got = f"no type hint of {', '.join(bare)}" if bare else "no docstring"
        raise UserError(f"{where}: expected type hints and a docstring, got {got}: {remedy}")
    writer = _schema_writer()
    try:
        return writer.get_json_schema(tool)
    except Exception as error:
        got = str(error).partition("\n")[0]
        raise UserError(f"{where}: expected type hints and a docstring, got: {got}; {remedy}") from error


@cache
def _schema_writer() -> ModuleType:
    """The module of transformers that writes schemas, without the rest of the package, whose import takes 1 s."""
    is_alone = "transformers" not in sys.modules
    spec = find_spec("transformers")
    if is_alone and spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        for name, path in (("transformers", folder), ("transformers.utils", folder / "utils")):
            sys.modules[name] = package = ModuleType(name)
            package.__path__ = [str(path)]
    writer = import_module("transformers.utils.chat_template_utils")
    setattr(writer, "is_torch_available", lambda: False)  # noqa: B010  it would import torch for a hint
    if is_alone:  # a user's code may import the package itself
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[name]
    return writer


class _Guest:
    """The objects of one process, and what is asked of them."""

    def __init__(self, work: EnvironmentWork) -> None:
        self._work = work
        self._runner = asyncio.Runner()  # one event loop for all calls, so that connections opened in it stay usable
        self._object: Any = None
        self._rewards: list[float | None] = []  # what a game gave in each step

    def answer(self, kind: str, arguments: Sequence[Any], send: Callable[[int, Reply], None]) -> None:
        """Does what is asked, and sends one reply for each call, otherwise one."""
        if kind != "call":
            send(0, self._outcome(lambda: getattr(self, f"_{kind}")(*arguments)))
            return
        tools = [self._work.tools.get(name) or getattr(self._object, name) for name, _ in arguments]
        if len(tools) == 1:
            send(0, self._outcome(lambda: self._written(self._finished(tools[0](**arguments[0][1])))))
            return

        async def call(index: int) -> None:
            try:
                reply = self._written(await tools[index](**arguments[index][1]))
            except BaseException as error:  # noqa: BLE001  user code may raise anything
                reply = self._failed(error)
            send(index, reply)

        async def call_all() -> None:  # coroutine functions alone: the others of an environment come one by one
            await asyncio.gather(*map(call, range(len(tools))))

        self._runner.run(call_all())

    def _outcome(self, what: Callable[[], Reply]) -> Reply:
        try:
            return what()
        except BaseException as error:  # noqa: BLE001  user code may raise anything
            return self._failed(error)

    def _failed(self, error: BaseException) -> Reply:
        if isinstance(error, MemoryError):
            said = f"needed more than {self._work.memory_mib} MiB of memory"
        else:
            try:
                said = f"{type(error).__name__}: {error}"
            except BaseException:  # noqa: BLE001  a user's exception whose text cannot be made
                said = f"{type(error).__name__}: no message"
        return {"fault": Fault.EXCEPTION, "text": self._cut(said)}

    def _finished(self, value: Any) -> Any:
        async def awaited() -> Any:
            return await value

        return self._runner.run(awaited()) if inspect.isawaitable(value) else value

    def _written(self, value: Any) -> Reply:
        return {"text": self._cut(_content(value))}

    def _cut(self, text: str) -> str:
        return cut(text, self._work.characters)

    def _reset(self, key: str, row: Mapping[str, Any], seed: int) -> Reply:
        """Makes the object and resets it. The random numbers of the process begin with the seed."""
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed % 2**32)
        self._object = self._work.makers[key]()
        observation = self._finished(self._object.reset(**accepted(self._object.reset, row, seed)))
        is_pair = self._work.is_game and isinstance(observation, tuple) and len(observation) == 2
        if is_pair and isinstance(observation[1], Mapping | None):
            observation = observation[0]  # the other is gymnasium's info
        return self._written(observation)

    def _step(self, message: str) -> Reply:
        step_result = self._finished(self._object.step(message))
        if isinstance(step_result, Mapping):  # of skyrl-gym
            observation, reward, done = (step_result.get(key) for key in ("observations", "reward", "done"))
        elif isinstance(step_result, tuple) and len(step_result) in (4, 5):
            observation, reward, done = step_result[0], step_result[1], any(step_result[2:-1])
        else:
            raise TypeError(
                "expected step to return (observation, reward, terminated, truncated, info), or a dict with "
                f"observations, reward and done; got {step_result!r:.80}"
            )
        self._rewards.append(None if reward is None else _number("step", reward))
        return {"text": self._cut(_content(observation)), "reward": self._rewards[-1], "done": bool(done)}

    def _verdict(self) -> Reply:
        attributes: Reply = {}
        # Public attributes and properties that are text, numbers or None, which TRL's reward functions read.
        properties = dict(inspect.getmembers(type(self._object), lambda member: isinstance(member, property)))
        for name in [*getattr(self._object, "__dict__", {}), *properties]:
            with suppress(Exception):  # a property may raise anything
                value = None if name.startswith("_") else getattr(self._object, name)
                is_number = isinstance(value, int | float) and abs(value) < 2**63
                is_text = isinstance(value, str) and len(value) <= _LONGEST_ATTRIBUTE
                if not name.startswith("_") and (value is None or isinstance(value, bool) or is_number or is_text):
                    attributes[name] = value
        verdict: Reply = {"reward": None, "text": "", "attributes": attributes}
        if self._work.wrap is None:  # what GroupRL wraps around an agent is nobody's object
            verdict["held"] = base64.b64encode(pack_object(self._object, _LARGEST_OBJECT)).decode()
        if self._work.is_game:
            rewards = [reward for reward in self._rewards if reward is not None]
            # A policy that never got to a step earned nothing; a game that gives no rewards says nothing.
            return verdict | {"reward": math.fsum(rewards) if rewards or not self._rewards else None}
        if not _has_reward(self._object):
            return verdict
        reward = self._finished(self._object.get_reward())
        return verdict | {"reward": None if reward is None else _number("get_reward", reward)}

    def _close(self) -> Reply:
        """Lets the object end what it holds elsewhere: a game by `close`, any other by `__del__`."""
        held, self._object = self._object, None
        if self._work.is_game and callable(getattr(held, "close", None)):
            self._finished(held.close())
        return {"text": ""}


def cut(text: str, most: int) -> str:
    """Text of at most so many characters, with a mark where it was longer, and without halves of characters."""
    clean = _LONE.sub("\N{REPLACEMENT CHARACTER}", text[:most])
    return clean if len(text) <= most else f"{clean}… [cut: {len(text):,} characters]"


def as_text(value: object) -> str:
    """What the policy reads of a tool's result.

    Raises:
        TypeError: the value says nothing, such as a generator.
    """
    if isinstance(value, str):
        return str.__str__(value)  # plain, also of a subclass
    if value is None:
        return ""
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or callable(value):
        raise TypeError(f"expected text, a number, a list or a dict as the tool's result, got {type(value).__name__}")
    if isinstance(value, dict | list):
        with suppress(TypeError, ValueError):  # keys that JSON does not have, or a list that holds itself
            return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _content(value: object) -> str:
    """The text of an observation: of content blocks and of messages, their texts.

    Raises:
        TypeError: a block is an image, or a text says nothing.
    """
    if not isinstance(value, list | tuple) or not value or not all(isinstance(part, Mapping) for part in value):
        return as_text(value)
    for part in value:
        if part.get("type") == "image":
            raise TypeError("expected text, got an image, which no model here reads")
    texts = [part.get("text", part.get("content")) for part in value]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else as_text(value)


def accepted(function: Callable[..., Any], row: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The columns that a function accepts; the seed where it names one and no column has that name."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    columns = {name: value for name, value in row.items() if takes_all or name in parameters}
    return {"seed": seed} | columns if "seed" in parameters else columns


def _number(method: str, value: Any) -> float:
    plain = value.item() if hasattr(value, "item") else value
    try:
        number = float(plain) if isinstance(plain, Real) else math.nan
    except OverflowError:  # such as 10^400
        number = math.nan
    if not math.isfinite(number):
        got = type(value).__name__
        with suppress(ValueError):  # a number of too many digits
            got = f"{value!r:.80} ({got})"
        raise TypeError(f"expected a finite number as the reward of {method}, got {got}")
    return number
