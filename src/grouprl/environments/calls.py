"""Reads the tool calls in what the policy wrote, in the forms that chat templates of model families write them.

Sources: the templates of Qwen2.5, Qwen3 and Hermes 2 Pro; Llama 3.1 and 3.2; Mistral v3, Nemo and v11; DeepSeek V3, R1
and V3.1. A call inside <think>...</think> is none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
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
    """A form of calls: what begins one, and how it is read.

    `read` takes the text and the match of `opening`; it gives the entries and the place from which to go on.
    """

    name: str
    opening: re.Pattern[str]
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
        else:
            found, place = form.read(text, match)
            entries += found
    return entries


def _after_thought(text: str, place: int) -> int:
    closed = text.find(THOUGHT, place)
    return len(text) if closed < 0 else closed + len(THOUGHT)


def _finite(number: str) -> float:
    """JSON has no NaN, and 1e999 is read as infinity."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no finite number")
    return value


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_SPACE = re.compile(r"\s*")


def _json(text: str, place: int) -> tuple[Any, int]:
    """A JSON value that begins at a place, and the place after it.

    Raises:
        ValueError: it is broken; the message is for the policy.
    """
    start = _SPACE.match(text, place).end()  # type: ignore[union-attr]
    try:
        value, end = _JSON.raw_decode(text, start)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except json.JSONDecodeError as error:
        raise ValueError(f"the call is no valid JSON: {error.msg} at character {error.pos - start}") from None
    except UnicodeEncodeError:
        raise ValueError("the call is no valid JSON: half of a surrogate pair") from None
    except RecursionError:
        raise ValueError("the call is no valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the call is no valid JSON: {error}") from None
    return value, end


def _call(value: Any, *keys: str) -> Call:
    """A call from its JSON object, whose arguments have one of these keys."""
    if not isinstance(value, dict):
        raise ValueError(f"the call is no JSON object with name and {keys[0]}")
    given: Any = next((value[key] for key in keys if key in value), {})
    return _named(value.get("name"), given, value.get("id"))


def _named(name: Any, arguments: Any, identity: Any = "") -> Call:
    if not isinstance(name, str) or not name.strip():
        raise ValueError("the call has no name")
    if not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments of {name} are no JSON object")
    return Call(name, arguments, identity if isinstance(identity, str) else "")


def _until(text: str, place: int, *marks: str) -> int:
    """The first place of a mark, or the end."""
    return min((found for mark in marks if (found := text.find(mark, place)) >= 0), default=len(text))


def _close(text: str, place: int, closing: re.Pattern[str]) -> int:
    """The place after what closes a call; the end of the turn closes it too."""
    place = _SPACE.match(text, place).end()  # type: ignore[union-attr]
    if place == len(text):
        return place
    if not (match := closing.match(text, place)):
        raise ValueError("the call is no valid JSON: more text follows its object")
    return match.end()


_HERMES_END = re.compile(r"</tool_call>")


def _read_hermes(text: str, match: re.Match[str]) -> tuple[list[Entry], int]:
    start = match.end()
    try:
        value, end = _json(text, start)
        end = _close(text, end, _HERMES_END)
        return [_call(value, "arguments")], end
    except ValueError as error:
        end = _until(text, start, "</tool_call>", "<tool_call>")
        return [WrongCall(text[start:end].strip(), str(error))], end


_PYTHON_TAG = "<|python_tag|>"
_NEXT = re.compile(r"\s*(?:;\s*)?(?=\{)")


def _read_llama(text: str, match: re.Match[str]) -> tuple[list[Entry], int]:
    """Without the tag, a turn is a call when it begins with a JSON object that has a name or parameters."""
    tagged = match[0] == _PYTHON_TAG
    start = match.end() if tagged else match.start()
    if not tagged and text[:start].rpartition(THOUGHT)[2].strip():
        return [], match.end()
    entries: list[Entry] = []
    try:
        while True:
            value, end = _json(text, start)
            if not tagged and not {"name", "parameters"} & value.keys():
                return entries, end
            entries.append(_call(value, "parameters", "arguments"))
            if not (following := _NEXT.match(text, end)):
                return entries, end
            start = following.end()
    except ValueError as error:
        end = _until(text, start, _PYTHON_TAG)
        if tagged or '"name"' in text[start:end]:
            entries.append(WrongCall(text[start:end].strip(), str(error)))
        return entries, end


_TOOL_CALLS = "[TOOL_CALLS]"
_MISTRAL_NAME = re.compile(r"\s*([^\s\[{]+)(?:\[CALL_ID\]([^\[{]*))?(?:\[ARGS\])?")


def _read_mistral(text: str, match: re.Match[str]) -> tuple[list[Entry], int]:
    """A list of calls, or a name with its arguments (v11)."""
    start = match.end()
    try:
        if named := _MISTRAL_NAME.match(text, start):
            value, end = _json(text, named.end())
            return [_named(named[1], value, named[2])], end
        value, end = _json(text, start)
        values = value if isinstance(value, list) and value else [value]
    except ValueError as error:
        end = _until(text, start, _TOOL_CALLS)
        return [WrongCall(text[start:end].strip(), str(error))], end
    entries: list[Entry] = []
    for one in values:
        try:
            entries.append(_call(one, "arguments"))
        except ValueError as error:
            entries.append(WrongCall(json.dumps(one, ensure_ascii=False), str(error)))
    return entries, end


_BEGINS, _BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
# function<sep>NAME, then a block of JSON (V3, R1), or NAME<sep>JSON (V3.1)
_DEEPSEEK_NAME = re.compile(r"(?P<kind>[^\n]*?)<｜tool▁sep｜>(?:(?P<name>[^\n]*)\n```json\n)?")
_DEEPSEEK_END = re.compile(rf"(?:```\s*)?{_END}")


def _read_deepseek(text: str, match: re.Match[str]) -> tuple[list[Entry], int]:
    start = match.end()
    try:
        if not match[0].endswith(_BEGIN):
            raise ValueError("no call follows the mark that begins calls")
        if not (named := _DEEPSEEK_NAME.match(text, start)):
            raise ValueError("the call has no name")
        value, end = _json(text, named.end())
        end = _close(text, end, _DEEPSEEK_END)
        return [_named(named["kind"] if named["name"] is None else named["name"], value)], end
    except ValueError as error:
        end = _until(text, start, _END, _BEGIN)
        return [WrongCall(text[start:end].strip(), str(error))], end


def _opening(*marks: str) -> re.Pattern[str]:
    return re.compile("|".join([re.escape(THINK), *marks]))


FORMS: Sequence[CallForm] = (
    CallForm("Hermes (<tool_call>)", _opening("<tool_call>"), _read_hermes),
    CallForm("Mistral ([TOOL_CALLS])", _opening(re.escape(_TOOL_CALLS)), _read_mistral),
    CallForm("DeepSeek (<｜tool▁call▁begin｜>)", _opening(rf"{_BEGINS}\s*(?:{_BEGIN})?", _BEGIN), _read_deepseek),
    CallForm("Llama (JSON)", _opening(re.escape(_PYTHON_TAG), r"\{"), _read_llama),
)
