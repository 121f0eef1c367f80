"""Environments behind an OpenEnv server, spoken to over WebSocket and JSON: one connection is one episode.

After a timeout the connection is dropped, because the late answer would be taken for that of the next request.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from http.client import HTTPException
from socket import SHUT_RDWR
from threading import Timer
from typing import Any, Self

from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.arguments import fitted, is_schema
from grouprl.environments.base import NOT_AS_EXPECTED, Call, Fault, Observation, Opening, Schema, Verdict
from grouprl.environments.guest import as_text, cut
from grouprl.rewards.http import fetch
from grouprl.types import Problem, UserError, import_extra

_VERSION = "0.10"
_LONGEST = 16 << 20  # bytes of a message
_FIRST = ("type", "properties", "required")  # of a schema
_CLOSING_SECONDS = 0.2  # that a server gets to say that it has closed, too


class _Session:
    """A WebSocket connection to a server. Its methods raise TimeoutError, and OSError when no server answers."""

    def __init__(self, url: str, seconds: float) -> None:
        client = import_extra("websockets.sync.client", "openenv", "environment.url")
        self._lost = import_extra("websockets.exceptions", "openenv", "environment.url").WebSocketException
        self._seconds, self._open = seconds, ExitStack()
        limits = {"open_timeout": seconds, "close_timeout": _CLOSING_SECONDS, "max_size": _LONGEST}
        try:  # without pings, because a server that computes does not answer them
            opened = client.connect(f"{url.replace('http', 'ws', 1)}/ws", ping_interval=None, proxy=None, **limits)
            self._socket = self._open.enter_context(opened)
        except self._lost as error:
            raise ConnectionError(str(error)) from error

    def request(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a message; ValueError for what is no JSON."""
        started = time.monotonic()

        def end() -> None:
            with suppress(OSError):  # closed meanwhile
                self._socket.socket.shutdown(SHUT_RDWR)

        ending = Timer(self._seconds, end)  # also of a message that the server does not read
        ending.start()
        try:
            self._socket.send(json.dumps(message))
            reply: Mapping[str, Any] = json.loads(self._socket.recv(self._seconds))
        except self._lost as error:
            late = time.monotonic() - started >= self._seconds
            raise (TimeoutError if late else ConnectionError)(str(error)) from error
        finally:
            ending.cancel()
        return reply

    def close(self) -> None:
        """Drops the connection."""
        self._open.close()


class OpenEnvSource:
    """Environments of one OpenEnv server.

    Args:
        url: of the server, such as `http://localhost:8000`.
        limits: the limits of an episode.
    """

    def __init__(self, url: str, limits: EnvironmentConfig | None = None) -> None:
        if not re.match("(http|ws)s?://.", url):
            raise UserError(
                f"environment.url: expected an address with http:// or ws://, got {url!r:.80}: write http://"
            )
        self.url, self.limits = re.sub("^ws", "http", url.rstrip("/")), limits or EnvironmentConfig()
        self._tools: tuple[Schema, ...] | None = None
        self.calls_tools = False  # by name; else the one tool is a step

    def ready(self) -> Self:
        """Asks the server for its tools, or for the form of its action, which is then the one tool `step`.

        Raises:
            UserError: no server is there, or it is of another version.
        """
        if self._tools is None:
            try:
                action = json.loads(fetch(f"{self.url}/schema", self.limits.tool_seconds, _LONGEST))["action"]
                self.calls_tools = "tool_name" in action["properties"]
                if self.calls_tools:
                    connection = _Session(self.url, self.limits.tool_seconds)
                    try:
                        reply = connection.request({"type": "step", "data": {"type": "list_tools"}})
                        tools = reply["data"]["observation"]["tools"]
                    finally:
                        connection.close()
                    self._tools = tuple(
                        _tool(tool["name"], tool["description"], tool["input_schema"]) for tool in tools
                    )
                else:  # the form of an action as a tool
                    properties = {name: schema for name, schema in action["properties"].items() if name != "metadata"}
                    rest = {name: action[name] for name in ("required", "$defs") if name in action}
                    form = {"properties": properties, **rest}
                    self._tools = (_tool("step", action.get("description", "Acts."), form),)
            except OSError as error:
                raise UserError(f"{self.url}: expected an OpenEnv {_VERSION} server, got {error}: start it") from error
            except (*NOT_AS_EXPECTED, HTTPException) as error:
                raise UserError(
                    f"{self.url}: expected an OpenEnv {_VERSION} server, got another answer ({error!r:.80}): install "
                    f"openenv {_VERSION} there"
                ) from error
        return self

    def open(self, problem: Problem) -> OpenEnvEnvironment:
        """Makes the environment of an episode; it connects with `reset`. Raises UserError as `ready`."""
        return OpenEnvEnvironment(self.ready(), self._tools or ())

    def close(self) -> None:
        """The connections belong to the episodes."""


class OpenEnvEnvironment:
    """One episode on a server; its reward is the sum of those of its steps."""

    def __init__(self, source: OpenEnvSource, tools: Sequence[Schema]) -> None:
        self._source, self.tools = source, tools
        self._connection: _Session | None = None
        self._gone = "it was not reset"
        self._rewards: list[float | None] = []  # of the steps

    def reset(self, problem: Problem, seed: int) -> Opening:
        """Connects, and resets the environment with the seed and the problem's columns. Raises UserError."""
        where = f"{self._source.url} of {problem.where}"
        try:
            self._connection, self._gone = _Session(self._source.url, self._source.limits.tool_seconds), ""
            observation = self._exchange({"type": "reset", "data": {**problem.columns, "seed": seed}})
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{where}: expected a server that resets, got {error!r:.200}: see its log") from error
        if observation.fault:
            raise UserError(
                f"{where}: expected `reset` to begin an episode, got {observation.text:.200}: see the server's log"
            )
        self._rewards.clear()  # a server may give 0 before anything was done
        return Opening(observation.text)

    def call(self, calls: Sequence[Call]) -> list[Observation]:
        """Makes the calls, one after the other: they share the state of the environment."""
        return list(map(self._call, calls))

    def _call(self, call: Call) -> Observation:
        schemas = {schema["function"]["name"]: schema["function"]["parameters"] for schema in self.tools}
        if call.tool not in schemas:
            return _failed(Fault.UNKNOWN_TOOL, f"expected one of the tools {', '.join(schemas)}, got {call.tool!r:.80}")
        try:
            arguments = fitted(call.arguments, schemas[call.tool])
        except ValueError as error:
            return _failed(Fault.ARGUMENTS, f"{call.tool}: {error}")
        if self._gone:
            return _failed(Fault.CRASH, f"{call.tool} cannot be called: {self._gone}")
        named = {"type": "call_tool", "tool_name": call.tool, "arguments": arguments}
        return self._exchange({"type": "step", "data": named if self._source.calls_tools else arguments})

    def _exchange(self, message: Mapping[str, Any]) -> Observation:
        assert self._connection is not None
        seconds, started = self._source.limits.tool_seconds, time.monotonic()
        fault = Fault.CRASH
        try:
            reply = self._connection.request(message)
            return self._read(reply["type"], reply["data"], time.monotonic() - started)
        except TimeoutError:
            fault, why = Fault.TIMEOUT, f"took longer than {seconds:g} s"
        except OSError:
            why = "closed the connection"
        except NOT_AS_EXPECTED:
            why = f"gave no answer of OpenEnv {_VERSION}"
        self._connection.close()
        self._gone = f"the environment is gone, because the server {why}"
        return _failed(fault, f"the server {why}; the environment is gone", time.monotonic() - started)

    def _read(self, kind: str, data: Mapping[str, Any], seconds: float) -> Observation:
        most = self._source.limits.result_characters
        if kind == "error":
            wrong = Fault.ARGUMENTS if data["code"] == "VALIDATION_ERROR" else Fault.EXCEPTION
            return _failed(wrong, cut(str(data["message"]), most), seconds)
        seen, reward = data["observation"], data.get("reward")
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"expected a finite reward, got {reward}")
        self._rewards.append(reward)
        if isinstance(seen.get("error"), Mapping):  # of a call that did not reach the tool, or that raised
            return _failed(Fault.EXCEPTION, cut(str(seen["error"]["message"]), most), seconds)
        if "tool_name" in seen:
            result = seen.get("result")
            result = result.get("data", result) if isinstance(result, Mapping) else result
        else:  # the one text of an observation, or all of it as JSON
            fields = {name: value for name, value in seen.items() if value not in (None, {}, []) and name != "metadata"}
            result = next(iter(fields.values())) if len(fields) == 1 else fields or ""
        return Observation(cut(as_text(result), most), reward=reward, done=bool(data.get("done")), seconds=seconds)

    def reply(self, message: str) -> Observation | None:
        """None: a server takes calls alone."""
        return None

    def verdict(self) -> Verdict:
        """The sum of the rewards that the server gave."""
        if self._gone:
            return Verdict(None, self._gone)
        rewards = [reward for reward in self._rewards if reward is not None]
        total = sum(rewards)  # a policy that never acted earned nothing; a server without rewards says nothing
        return Verdict(float(total) if rewards or not self._rewards else None)

    def close(self) -> None:
        """Ends the session."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._gone = None, "the episode is closed"


def _tool(name: str, description: str, parameters: Mapping[str, Any]) -> Schema:
    schema = _ordered({"type": "object", "properties": {}, **parameters})
    if not is_schema(schema) or not isinstance(name, str) or not isinstance(description, str | None):
        raise ValueError(f"a tool without a name, a description and a JSON schema: {name!r:.80}")
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _ordered(schema: Any, *, names: bool = False) -> Any:
    """A schema as transformers writes it: a policy reads the same of a function and of a tool behind a server."""
    if not isinstance(schema, Mapping):
        return schema
    keys = list(schema)
    if not names:
        skipped = {"title"} | ({"additionalProperties"} if schema.get("additionalProperties") is False else set())
        keys = [name for name in dict.fromkeys((*_FIRST, *schema)) if name in schema and name not in skipped]
    return {name: _ordered(schema[name], names=not names and name == "properties") for name in keys}


def _failed(fault: Fault, text: str, seconds: float = 0.0) -> Observation:
    return Observation(f"error: {text}", fault=fault, seconds=seconds)
