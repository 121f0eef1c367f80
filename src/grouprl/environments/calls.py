"""Reads the tool calls in what the policy wrote, in the forms in which chat templates of model families write them.

Sources: the templates of Qwen2.5, Qwen3 and Hermes 2 Pro; Llama 3.1 and 3.2; Mistral v3, Nemo and v11; DeepSeek V3, R1
and V3.1. A call inside <think>...</think> is none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.environments.base import Call, Fault

THINK, THOUGHT = "<think>", "</think>"


@dataclass(frozen=True)
class WrongCall:
    """Text in the place of a call that cannot be read as one."""

    text: str
    reason: str  # a sentence for the policy
    fault: Fault = Fault.FORMAT


Entry = Call | WrongCall


@dataclass(frozen=True)
class CallForm:
    """A form of calls. `read` gives the calls that a match of `opening` begins, and the place after them."""

    name: str
    opening: re.Pattern[str]
    ends: Sequence[str]  # one of them ends what cannot be read
    read: Callable[[str, re.Match[str]], tuple[list[Entry], int]]


def read_calls(text: str, form: CallForm, *, in_thought: bool = False) -> list[Entry]:
    """The calls of a turn in their order; [] = it makes none.

    Args:
        text: the turn, decoded with its special tokens.
        form: the form of calls.
        in_thought: whether the prompt ends with <think>, so that the turn begins inside a thought.
    """
    entries: list[Entry] = []
    place = _after_thought(text, 0) if in_thought else 0
    while match := form.opening.search(text, place):
        if match[0] == THINK:
            place = _after_thought(text, match.end())
            continue
        try:
            found, place = form.read(text, match)
            entries += found
        except ValueError as error:
            ends = [end for mark in form.ends if (end := text.find(mark, match.end())) >= 0]
            place = min(ends, default=len(text))
            entries.append(WrongCall(text[match.start() : place].strip(), str(error)))
    return entries


def before_calls(text: str, form: CallForm, *, in_thought: bool = False) -> str:
    """What a turn says before its first call, see `read_calls`."""
    place = _after_thought(text, 0) if in_thought else 0
    while (match := form.opening.search(text, place)) and match[0] == THINK:
        place = _after_thought(text, match.end())
    return text[: match.start()] if match else text


def _after_thought(text: str, place: int) -> int:
    closed = text.find(THOUGHT, place)
    return len(text) if closed < 0 else closed + len(THOUGHT)


def _finite(number: str) -> float:
    """JSON has no NaN, and 1e999 would be read as infinity."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no finite number")
    return value


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _json(text: str, place: int, closing: str | None = None) -> tuple[Any, int]:
    """A JSON value and the place after it, and after the pattern that closes it; the text's end closes it too.

    Raises:
        ValueError: it is broken; the message is for the policy.
    """
    rest = text[place:].lstrip()
    try:
        value, end = _JSON.raw_decode(rest)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        if closing is not None and rest[end:].strip():
            if not (match := re.compile(rf"\s*{closing}").match(rest, end)):
                raise ValueError("more text follows it")
            end = match.end()
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of too many digits, too
        raise ValueError(f"the call is no valid JSON: {error}") from None
    return value, len(text) - len(rest) + end


def _call(value: Any, *keys: str) -> Entry:
    """The call of a JSON object whose arguments have one of these keys; without any, a tool is called with none."""
    if not isinstance(value, dict):
        return WrongCall(json.dumps(value), f"the call is no JSON object with name and {keys[0]}")
    given: Any = next((value[key] for key in keys if key in value), {})
    return _named(value.get("name"), given, value.get("id"))


def _named(name: Any, arguments: Any, identity: Any = "") -> Entry:
    if not isinstance(name, str) or not name.strip():
        return WrongCall(json.dumps(arguments, ensure_ascii=False), "the call has no name")
    if not isinstance(arguments, dict):
        return WrongCall(json.dumps(arguments, ensure_ascii=False), f"the arguments of {name} are no JSON object")
    return Call(name, arguments, identity if isinstance(identity, str) else "")


def _read_hermes(text: str, match: re.Match[str]) -> tuple[list[Entry], int]:
    value, end = _json(text, match.end(), "</tool_call>")
    return [_call(value, "arguments")], end


_PYTHON_TAG = "<|python_tag|>"


def _read_llama(text: str, match: re.Match[str]) -> tuple[list[Entry], int]:
    """Without the tag, a turn makes calls when it begins with JSON objects that have a name or parameters."""
    tagged = match[0] == _PYTHON_TAG
    if not tagged:
        before = text[: match.start()].rstrip(" \t\n;")
        if (before and not before.endswith((THOUGHT, "}"))) or '"name"' not in text[match.start() :]:
            return [], match.end()
    value, end = _json(text, match.end() if tagged else match.start())
    if not tagged and value.keys().isdisjoint(("name", "parameters")):
        return [], end
    return [_call(value, "parameters", "arguments")], end


_MISTRAL_NAME = re.compile(r"\s*([^\s\[{]+)(?:\[CALL_ID\]([^\[{]*))?(?:\[ARGS\])?")


def _read_mistral(text: str, match: re.Match[str]) -> tuple[list[Entry], int]:
    """A list of calls, or a name with its arguments (v11)."""
    if named := _MISTRAL_NAME.match(text, match.end()):
        value, end = _json(text, named.end())
        return [_named(named[1], value, named[2])], end
    value, end = _json(text, match.end())
    return [_call(one, "arguments") for one in (value if value and isinstance(value, list) else [value])], end


_BEGINS, _BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
# function<sep>NAME and a block of JSON (V3, R1), or NAME<sep>JSON (V3.1)
_DEEPSEEK_NAME = re.compile(r"(?P<kind>[^\n]*?)<｜tool▁sep｜>(?:(?P<name>[^\n]*)\n```json\n)?")


def _read_deepseek(text: str, match: re.Match[str]) -> tuple[list[Entry], int]:
    named = _DEEPSEEK_NAME.match(text, match.end()) if match[0].endswith(_BEGIN) else None
    if named is None:
        raise ValueError("no call with a name follows the mark of a call")
    value, end = _json(text, named.end(), rf"(?:```\s*)?{_END}")
    return [_named(named["kind"] if named["name"] is None else named["name"], value)], end


def _opening(*marks: str) -> re.Pattern[str]:
    return re.compile("|".join([THINK, *marks]))


FORMS: Sequence[CallForm] = (
    CallForm("Hermes", _opening("<tool_call>"), ("</tool_call>", "<tool_call>"), _read_hermes),
    CallForm("Mistral", _opening(r"\[TOOL_CALLS\]"), ("[TOOL_CALLS]",), _read_mistral),
    CallForm("DeepSeek", _opening(rf"{_BEGINS}\s*(?:{_BEGIN})?", _BEGIN), (_END, _BEGIN), _read_deepseek),
    CallForm("Llama", _opening(re.escape(_PYTHON_TAG), r"\{"), (_PYTHON_TAG,), _read_llama),
)
