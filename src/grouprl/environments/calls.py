"""Reads the tool calls in what the policy wrote, in the forms in which chat templates of model families write them.

Sources: the templates of Qwen2.5, Qwen3 and Hermes 2 Pro; Qwen3.5, Qwen3.6 and Nemotron 3; GLM 4.x; Llama 3.1 and 3.2;
Mistral v3, Nemo and v11; DeepSeek V3, R1 and V3.1; gpt-oss; Gemma 4; LFM2 and LFM2.5. A call inside
<think>...</think> is none. Every reader takes time linear in the text, whatever the policy wrote.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.environments.arguments import fitted_value
from grouprl.environments.base import Call, Fault, Schema

THINK, THOUGHT = "<think>", "</think>"
_MOST_CALLS = 1_000  # of a turn


@dataclass(frozen=True)
class WrongCall:
    """Text in the place of a call that cannot be read as one."""

    text: str
    reason: str  # a sentence for the policy
    fault: Fault = Fault.FORMAT


Entry = Call | WrongCall


class _BrokenCallError(ValueError):
    """A call cannot be read; `position` is where reading stopped, if the text before it cannot begin another call."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(reason)
        self.position = position


class Turn:
    """The text of a turn, with the schemas of the tools' parameters by name.

    A search that continues behind an earlier one of its pattern reads no character twice.
    """

    def __init__(self, text: str, tools: Sequence[Schema]) -> None:
        self.text = text
        self.parameters: Mapping[str, Mapping[str, Schema]] = {
            tool["function"]["name"]: tool["function"].get("parameters", {}).get("properties", {}) for tool in tools
        }
        self._next: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}

    def search(self, pattern: re.Pattern[str], position: int) -> re.Match[str] | None:
        """The first match of a pattern from a place on."""
        begin, match = self._next.get(pattern, (len(self.text) + 1, None))
        if position < begin or (match is not None and match.start() < position):
            match = pattern.search(self.text, position)
            self._next[pattern] = position, match
        return match


@dataclass(frozen=True)
class CallForm:
    """A form of calls. `read` gives the calls that a match of `opening` begins, and the place after them."""

    name: str
    opening: re.Pattern[str]
    ends: re.Pattern[str]  # ends what cannot be read
    read: Callable[[Turn, re.Match[str]], tuple[list[Entry], int]]


def read_calls(text: str, form: CallForm, tools: Sequence[Schema] = (), *, in_thought: bool = False) -> list[Entry]:
    """The calls of a turn in their order; [] = it makes none.

    Args:
        text: the turn, decoded with its special tokens.
        form: the form of calls.
        tools: schemas, which some forms need to tell text from numbers.
        in_thought: whether the prompt ends with <think>, so that the turn begins inside a thought.
    """
    turn, entries = Turn(text, tools), list[Entry]()
    position = _after_thought(text, 0) if in_thought else 0
    while match := _next_call(text, form, position):
        if len(entries) == _MOST_CALLS:
            return [*entries, WrongCall(text[match.start() :], f"a turn makes at most {_MOST_CALLS:,} calls")]
        try:
            calls, position = form.read(turn, match)
            entries += calls
        except ValueError as error:
            end = turn.search(form.ends, max(match.end(), getattr(error, "position", 0)))
            position = end.start() if end else len(text)
            entries.append(WrongCall(text[match.start() : position].strip(), str(error)))
    return entries


def before_calls(text: str, form: CallForm, *, in_thought: bool = False) -> str:
    """What a turn says before its first call; the arguments are those of `read_calls`."""
    match = _next_call(text, form, _after_thought(text, 0) if in_thought else 0)
    return text[: match.start()] if match else text


def _next_call(text: str, form: CallForm, position: int) -> re.Match[str] | None:
    """The opening of the first call from a place on that is outside of thoughts."""
    while (match := form.opening.search(text, position)) and match[0] == THINK:
        position = _after_thought(text, match.end())
    return match


def _after_thought(text: str, position: int) -> int:
    closed = text.find(THOUGHT, position)
    return len(text) if closed < 0 else closed + len(THOUGHT)


def _finite(number: str) -> float:
    """JSON has no NaN, and 1e999 would be read as infinity."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no finite number")
    return value


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_SPACE = re.compile(r"\s*+")
_WINDOW = 256  # characters, see `_decoded`


def _decoded(text: str, start: int, most: int = _WINDOW) -> tuple[Any, int]:
    """A JSON value and the place after it. Raises ValueError for the policy.

    The decoder gets no more than it reads, because its errors count the lines of all that it gets.
    """
    part = text[start : start + most]
    is_cut = start + most < len(text)
    try:
        value, end = _JSON.raw_decode(part)
        if is_cut and end == most:  # a number may continue
            return _decoded(text, start, 2 * most)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of too many digits, too
        broken_at = error.pos if is_cut and isinstance(error, json.JSONDecodeError) else 0
        if broken_at > most - 16 or (broken_at and str(error).startswith("Unterminated")):
            return _decoded(text, start, 2 * most)
        raise ValueError(f"the call is no valid JSON: {error}") from None
    return value, start + end


def _json(text: str, position: int, closing: re.Pattern[str] | None = None) -> tuple[Any, int]:
    """A JSON value and the place after it, and after the pattern that closes it; the text's end closes it too.

    Raises:
        ValueError: it is broken; the message is for the policy.
    """
    value, stop = _decoded(text, _after_space(text, position))
    end = _after_space(text, stop)
    if closing is None or end == len(text):
        return value, stop if closing is None else end
    if not (match := closing.match(text, end)):
        raise ValueError("the call is no valid JSON: more text follows it")
    return value, match.end()


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _call(value: Any, *keys: str) -> Entry:
    """The call of a JSON object whose arguments have one of these keys; without any, a tool is called with none."""
    if not isinstance(value, dict):
        return WrongCall(json.dumps(value), f"the call is no JSON object with name and {keys[0]}")
    arguments: Any = next((value[key] for key in keys if key in value), {})
    return _named(value.get("name"), arguments, value.get("id"))


def _named(name: Any, arguments: Any, identity: Any = "") -> Entry:
    if not isinstance(name, str) or not name.strip():
        return WrongCall(json.dumps(arguments, ensure_ascii=False), "the call has no name")
    if not isinstance(arguments, dict):
        return WrongCall(json.dumps(arguments, ensure_ascii=False), f"the arguments of {name} are no JSON object")
    return Call(name, arguments, identity if isinstance(identity, str) else "")


def _read_hermes(turn: Turn, match: re.Match[str]) -> tuple[list[Entry], int]:
    value, end = _json(turn.text, match.end(), re.compile("</tool_call>"))
    return [_call(value, "arguments")], end


_PYTHON_TAG = "<|python_tag|>"
_NAME_KEY = re.compile('"name"')


def _read_llama(turn: Turn, match: re.Match[str]) -> tuple[list[Entry], int]:
    """Without the tag, a turn makes calls when it begins with JSON objects that have a name or parameters."""
    tagged = match[0] == _PYTHON_TAG
    if not tagged and not turn.search(_NAME_KEY, match.start()):
        return [], match.end()
    value, end = _json(turn.text, match.end() if tagged else match.end() - 1)
    if not tagged and value.keys().isdisjoint(("name", "parameters")):
        return [], end
    return [_call(value, "parameters", "arguments")], end


_MISTRAL_NAME = re.compile(r"\s*([^\s\[{]+)(?:\[CALL_ID\]([^\[{]*))?(?:\[ARGS\])?")


def _read_mistral(turn: Turn, match: re.Match[str]) -> tuple[list[Entry], int]:
    """A list of calls, or a name with its arguments (v11)."""
    if named := _MISTRAL_NAME.match(turn.text, match.end()):
        value, end = _json(turn.text, named.end())
        return [_named(named[1], value, named[2])], end
    value, end = _json(turn.text, match.end())
    return [_call(item, "arguments") for item in (value if value and isinstance(value, list) else [value])], end


@dataclass(frozen=True)
class _Json:
    """Marks of a form that writes a name, then the arguments as JSON. The name is the one group of `name` with text."""

    name: re.Pattern[str]
    end: re.Pattern[str]
    expected: str

    def read(self, turn: Turn, match: re.Match[str]) -> tuple[list[Entry], int]:
        """Reads one call."""
        if not (named := self.name.match(turn.text, match.end())):
            raise ValueError(self.expected)
        value, end = _json(turn.text, named.end(), self.end)
        return [_named(next(filter(None, named.groups()), ""), value)], end


_BEGINS, _BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK = _Json(
    # function<sep>NAME and a block of JSON (V3, R1), or NAME<sep>JSON (V3.1); a name has no mark in it
    re.compile(rf"(?<={_BEGIN})(?:[^\n<]*<｜tool▁sep｜>([^\n<]*)\n```json\n|([^\n<]*)<｜tool▁sep｜>)"),
    re.compile(rf"(?:```\s*)?{_END}"),
    "no call with a name follows the mark of a call",
)
_HARMONY = _Json(
    # The name stands before the channel, as the template writes it, or after it, as the model does.
    re.compile(r"\.([^\s<]+)\s*(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?(?:\w+\s*)?<\|message\|>"),
    re.compile(r"<\|call\|>"),
    "expected to=functions.NAME, then <|message|> and the arguments",
)


@dataclass(frozen=True)
class _Tags:
    """Marks of a form that writes each argument between tags. A key is the first group of `key`, where it has one."""

    name: re.Pattern[str]
    key: re.Pattern[str]
    value_end: re.Pattern[str]  # as it ends a value: what follows belongs to the form, too
    end: re.Pattern[str]
    expected: str

    def read(self, turn: Turn, match: re.Match[str]) -> tuple[list[Entry], int]:
        """Reads one call. A value is text where the tool's schema takes text, JSON otherwise."""
        text, spans = turn.text, list[tuple[str, int, int]]()
        if not (name := self.name.match(text, match.end())):
            raise ValueError(f"expected {self.expected}")
        position = name.end()
        while key := self.key.match(text, position):
            if not (closed := turn.search(self.value_end, key.end())):
                reason = f"the value of {key[1].strip()} is not closed: expected {self.expected}"
                raise _BrokenCallError(reason, position)
            spans.append((key[1].strip(), key.end(), closed.start()))
            position = closed.end()
        if not (end := self.end.match(text, position)):
            raise _BrokenCallError(f"expected {self.expected}", position)
        schemas, arguments = turn.parameters.get(name[1].strip(), {}), dict[str, Any]()
        for argument, start, stop in spans:
            arguments[argument] = _typed(text[start:stop], schemas.get(argument, {}))
        return [_named(name[1].strip(), arguments)], end.end()


_WORDS = {"True": True, "False": False, "None": None}  # as some templates write them


def _typed(text: str, schema: Schema) -> Any:
    """The value that a text stands for: the text itself where the schema takes no other value that it may be."""
    if schema.get("type") == "string" and not schema.get("nullable"):
        return text
    value: Any = text
    try:
        decoded, end = _decoded(text.strip(), 0)
        value = decoded if end == len(text.strip()) else text
    except ValueError:
        value = _WORDS.get(text.strip(), text)
    for candidate in (value, text):
        try:
            return fitted_value("", candidate, schema)
        except ValueError:
            pass
    return value


_XML = _Tags(
    re.compile(r"\s*<function=([^<>]+)>\s*+"),
    re.compile(r"<parameter=([^<>]+)>\n?"),
    re.compile(r"\n?</parameter>\s*+(?=<parameter=|</function>)"),
    re.compile(r"</function>\s*+(?:</tool_call>|\Z)"),
    "<function=NAME>, <parameter=NAME> VALUE </parameter> for each argument, and </function>",
)
_GLM = _Tags(
    re.compile(r"\s*([^\s<>{]+)\s*+"),
    re.compile(r"<arg_key>([^<]*)</arg_key>\s*+<arg_value>"),
    re.compile(r"</arg_value>\s*+(?=<arg_key>|</tool_call>|\Z)"),
    re.compile(r"</tool_call>|\Z"),
    "NAME, <arg_key>NAME</arg_key> and <arg_value>VALUE</arg_value> for each argument, and </tool_call>",
)
_MUSE = _Tags(
    re.compile(r"\s*<atem:invoke name=\"([^\"<>]+)\">\s*+"),
    re.compile(r"<atem:parameter name=\"([^\"<>]+)\">"),
    re.compile(r"</atem:parameter>\s*+(?=<atem:parameter |</atem:invoke>)"),
    re.compile(r"</atem:invoke>\s*+(?:</atem:function_calls>|\Z)"),
    '<atem:invoke name="NAME">, <atem:parameter name="NAME">VALUE</atem:parameter> for each argument, </atem:invoke>',
)

# The others are JSON in other letters: each token is written as that of JSON, and the result is decoded.
_GEMMA_TOKEN = re.compile(
    r"\s*+(?:<\|\"\|>((?:[^<]++|<(?!\|\"\|>))*+)<\|\"\|>|([^\s:,{}\[\]<]++)(\s*+:)?|[:,{}\[\]])\s*+"
)
_GEMMA_NAME = re.compile(r"\s*call:([^\s{<]+)")
_GEMMA_END = re.compile(r"<tool_call\|>|\Z")
_LFM_TOKEN = re.compile(
    r"\s*+(?:'((?:[^'\\<]++|\\.|<(?!\|tool_call_)|'(?!\s*+[,:)\]}]))*+)'"
    r"|\"((?:[^\"\\<]++|\\.|<(?!\|tool_call_))*+)\""
    r"|([^\s,:()\[\]{}='\"<]++)\s*+([(=])?|[,:()\[\]{}])\s*+",
    re.DOTALL,
)
_LFM_END = re.compile(r"<\|tool_call_end\|>|\Z")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"} | {letter: letter for letter in "\\'\"/"}


def _translated(
    text: str, position: int, token: re.Pattern[str], end: re.Pattern[str], write: Callable[[re.Match[str]], str]
) -> tuple[Any, int]:
    """The value of tokens that `write` gives as JSON has them, and the place after the pattern that ends them."""
    words = []
    while match := token.match(text, position):
        words.append(write(match))
        position = match.end()
    written = "".join(words).strip()
    value, length = _decoded(written, 0)
    if length < len(written):
        raise ValueError("the call cannot be read: more text follows its arguments")
    if not (closed := end.match(text, position)):
        raise ValueError(f"the call cannot be read at {text[position : position + 20]!r}")
    return value, closed.end()


def _word(word: str, *, is_key: bool) -> str:
    return json.dumps(word) if is_key else json.dumps(_WORDS[word]) if word in _WORDS else word


def _read_gemma(turn: Turn, match: re.Match[str]) -> tuple[list[Entry], int]:
    """Strings stand between <|"|>, and keys are bare."""
    if not (name := _GEMMA_NAME.match(turn.text, match.end())):
        raise ValueError('expected call:NAME{KEY:VALUE, ...} with texts between <|"|>')

    def write(token: re.Match[str]) -> str:
        string, word, colon = token.groups()
        if string is not None:
            return json.dumps(string)
        return _word(word, is_key=bool(colon)) + ":" * bool(colon) if word else token[0]

    arguments, end = _translated(turn.text, name.end(), _GEMMA_TOKEN, _GEMMA_END, write)
    return [_named(name[1], arguments)], end


def _read_lfm(turn: Turn, match: re.Match[str]) -> tuple[list[Entry], int]:
    """A list of calls as in Python, [f(a=1, b='x'), g()]: it becomes [["f", {"a": 1, "b": "x"}], ["g", {}]]."""

    def unescaped(escape: re.Match[str]) -> str:
        return chr(int(escape[1][1:], 16)) if len(escape[1]) > 1 else _ESCAPES.get(escape[1], escape[0])

    def write(token: re.Match[str]) -> str:
        single, double, word, mark = token.groups()
        string = double if single is None else single
        if string is not None:
            return json.dumps(_ESCAPE.sub(unescaped, string))
        if not word:
            return "}]" if token[0].strip() == ")" else token[0]
        word = _word(word, is_key=mark is not None)
        return f"[{word},{{" if mark == "(" else f"{word}:" if mark else word

    calls, end = _translated(turn.text, match.end(), _LFM_TOKEN, _LFM_END, write)
    if not isinstance(calls, list) or not all(isinstance(item, list) and len(item) == 2 for item in calls) or not calls:
        raise ValueError("expected a list of calls, [NAME(KEY=VALUE, ...)]")
    return [_named(*call) for call in calls], end


def _opening(*marks: str) -> re.Pattern[str]:
    return re.compile("|".join([THINK, *marks]))


_TAG_ENDS = re.compile("</?tool_call>")
FORMS: Sequence[CallForm] = (
    CallForm("Hermes", _opening("<tool_call>"), _TAG_ENDS, _read_hermes),
    CallForm("Qwen XML", _opening("<tool_call>"), _TAG_ENDS, _XML.read),
    CallForm("GLM", _opening("<tool_call>"), _TAG_ENDS, _GLM.read),
    CallForm("Mistral", _opening(r"\[TOOL_CALLS\]"), re.compile(r"\[TOOL_CALLS\]"), _read_mistral),
    CallForm(
        "DeepSeek", _opening(rf"{_BEGINS}\s*+(?:{_BEGIN})?", _BEGIN), re.compile(f"{_END}|{_BEGIN}"), _DEEPSEEK.read
    ),
    CallForm(
        "gpt-oss",
        _opening(r"(?:\A|<\|start\|>assistant|<\|channel\|>\w+)\s*to=functions\b"),
        re.compile(r"<\|(?:call|start)\|>"),
        _HARMONY.read,
    ),
    CallForm("Gemma", _opening(r"<\|tool_call>"), re.compile(r"<\|?tool_call\|?>"), _read_gemma),
    CallForm("LFM", _opening(r"<\|tool_call_start\|>"), re.compile(r"<\|tool_call_(?:start|end)\|>"), _read_lfm),
    CallForm("Muse", _opening("<atem:function_calls>"), re.compile("</?atem:function_calls>"), _MUSE.read),
    CallForm(
        "Llama",
        _opening(re.escape(_PYTHON_TAG), r"(?:\A|(?<=</think>)|(?<=\}))[ \t\n;]*+\{"),
        re.compile(re.escape(_PYTHON_TAG)),
        _read_llama,
    ),
)
