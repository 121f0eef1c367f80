"""Reading calls in what a policy wrote: each form, broken ones, and thoughts."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.environments.base import Call, Fault
from grouprl.environments.calls import FORMS, WrongCall, before_calls, read_calls

BY_NAME = {form.name: form for form in FORMS}
SUM, TIME, F = Call("add", {"a": 4, "b": 5}), Call("time", {}), Call("f", {})
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
Q, TEXT = '<|"|>', 'It\'s "5" <b>\n{"a": 1}\n</x> é😀'


def read(form: str, text: str, *, in_thought: bool = False) -> list[Call | WrongCall]:
    return read_calls(text, BY_NAME[form], in_thought=in_thought)


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        ("Hermes", "It is 9.", []),
        ("Hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 4, "b": 5}}\n</tool_call>', [SUM]),
        ("Hermes", 'I add. <tool_call>{"arguments": {"a": 4, "b": 5}, "name": "add"}</tool_call> Wait.', [SUM]),
        ("Hermes", '<tool_call>{"name": "time"}</tool_call><tool_call>\n{"name": "time"}', [TIME, TIME]),
        ("Hermes", '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}', [Call("f", {"x": "</tool_call>"})]),
        ("Hermes", '<tool_call>{"name": "f", "arguments": {"x": "<think>"}}', [Call("f", {"x": "<think>"})]),
        ("Hermes", r'<tool_call>{"name": "\u00e9\"", "arguments": {"x": "\ud83d\ude00"}}', [Call('é"', {"x": "😀"})]),
        ("Llama", "The set {4, 5} has a sum.", []),
        ("Llama", '{"answer": 9}', []),
        ("Llama", '{"answer": {"name": "nine"}}', []),
        ("Llama", "{4, 5}", []),
        ("Llama", 'An object: {"name": "add", "parameters": {}}', []),
        ("Llama", '{"name": "add", "parameters": {"a": 4, "b": 5}}', [SUM]),
        ("Llama", ' \n{"type": "function", "name": "add", "arguments": {"a": 4, "b": 5}} Done.', [SUM]),
        ("Llama", '<|python_tag|>{"name": "time", "parameters": {}}', [TIME]),
        ("Llama", 'Now.<|python_tag|>{"name": "time"}', [TIME]),
        ("Llama", '{"name": "add", "parameters": {"a": 4, "b": 5}}; {"name": "f"}\n{"name": "f"}', [SUM, F, F]),
        ("Llama", '<|python_tag|>{"name": "time"}; {"name": "time"}', [TIME, TIME]),
        ("Llama", '<think>{"name": "time"}</think>\n\n{"name": "add", "parameters": {"a": 4, "b": 5}}', [SUM]),
        ("Mistral", "It is [9].", []),
        ("Mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 4, "b": 5}, "id": "a1b2c3d4e"}]', [SUM]),
        ("Mistral", 'Yes.[TOOL_CALLS][{"name": "time", "arguments": {}}, {"name": "time"}]', [TIME, TIME]),
        ("Mistral", '[TOOL_CALLS] {"name": "time", "arguments": {}}', [TIME]),
        ("Mistral", '[TOOL_CALLS]add[ARGS]{"a": 4, "b": 5}[TOOL_CALLS]time[ARGS]{}', [SUM, TIME]),
        ("Mistral", '[TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{"a": 4, "b": 5}', [SUM]),
        ("Mistral", '[TOOL_CALLS]time{}', [TIME]),
        ("DeepSeek", "It is 9.", []),
        ("DeepSeek", f'{ALL}{BEGIN}function{SEP}add\n```json\n{{"a": 4, "b": 5}}\n```{END}{ALL_END}', [SUM]),
        ("DeepSeek", f"{ALL}{BEGIN}time{SEP}{{}}{END}\n{BEGIN}time{SEP}{{}}{END}{ALL_END}", [TIME, TIME]),
        ("DeepSeek", f"Now. {BEGIN}function{SEP}time\n```json\n{{}}", [TIME]),
        ("gpt-oss", ' to=functions.f<|channel|>commentary json<|message|>{"n": 5}', [Call("f", {"n": 5})]),
        ("gpt-oss", "<|channel|>analysis<|message|>I call to=functions.g<|end|><|start|>assistant<|channel|>commentary "
         'to=functions.f <|constrain|>json<|message|>{"n": 5}<|call|>', [Call("f", {"n": 5})]),
        ("gpt-oss", "<|channel|>final<|message|>Done.", []),
        ("Gemma", "<|tool_call>call:f{}<tool_call|><|tool_call>call:f{}<tool_call|>", [F, F]),
        ("Gemma", f"<|tool_call>call:f{{s:{Q}{TEXT}{Q},n:5,b:true,o:{{k:[1,{Q}x{Q}]}},maybe:None}}<tool_call|>",
         [Call("f", {"s": TEXT, "n": 5, "b": True, "o": {"k": [1, "x"]}, "maybe": None})]),
        ("LFM", "<|tool_call_start|>[f(), f()]<|tool_call_end|>", [F, F]),
        ("LFM", "<|tool_call_start|>[f(s='It\\'s \\n \"5\"', n=5, b=True, o={\"k\": [1, 'x']}, maybe=None)]",
         [Call("f", {"s": 'It\'s \n "5"', "n": 5, "b": True, "o": {"k": [1, "x"]}, "maybe": None})]),
        ("LFM", "<|tool_call_start|>[f(s='It's\nso')]", [Call("f", {"s": "It's\nso"})]),
    ],
)  # fmt: skip
def test_calls_are_read(form: str, text: str, calls: list[Call]) -> None:
    assert read(form, text) == calls


SCHEMA = {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}, "b": {"type": "boolean"}}
SCHEMA |= {"x": {"type": "number"}, "maybe": {"type": "string", "nullable": True}, "l": {"type": "array"}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": SCHEMA}}}]
XML, XML_END = "<tool_call>\n<function=f>\n", "</function>\n</tool_call>"


def xml(**arguments: str) -> str:
    return XML + "".join(f"<parameter={key}>\n{one}\n</parameter>\n" for key, one in arguments.items()) + XML_END


def glm(**arguments: str) -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{one}</arg_value>\n" for key, one in arguments.items())
    return f"<tool_call>f\n{pairs}</tool_call>"


def muse(**arguments: str) -> str:
    pairs = "".join(f'<atem:parameter name="{key}">{one}</atem:parameter>\n' for key, one in arguments.items())
    return f'<atem:function_calls>\n<atem:invoke name="f">\n{pairs}</atem:invoke>\n</atem:function_calls>'


@pytest.mark.parametrize(("form", "write"), [("Qwen XML", xml), ("GLM", glm), ("Muse", muse)])
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ({"s": TEXT}, {"s": TEXT}),
        ({"s": "5"}, {"s": "5"}),
        ({"s": "null", "maybe": "null"}, {"s": "null", "maybe": None}),
        ({"s": "<tool_call>"}, {"s": "<tool_call>"}),
        ({"s": ""}, {"s": ""}),
        ({"n": "5", "x": "-1.5e3", "b": "true"}, {"n": 5, "x": -1500.0, "b": True}),
        ({"n": "5.0", "b": "True"}, {"n": 5, "b": True}),
        ({"o": '{"a": [1, {"b": null}]}', "l": '["é"]'}, {"o": {"a": [1, {"b": None}]}, "l": ["é"]}),
        ({"n": "five", "x": "1e400", "o": '{"a": '}, {"n": "five", "x": "1e400", "o": '{"a": '}),
        ({"x": "NaN", "n": "9" * 5000}, {"x": "NaN", "n": "9" * 5000}),
        ({"unknown": "5"}, {"unknown": 5}),
        (dict.fromkeys(("n", "x", "unknown"), "5 apples"), dict.fromkeys(("n", "x", "unknown"), "5 apples")),
        ({"n": "9" * 300, "b": " True "}, {"n": 10**300 - 1, "b": True}),
        ({}, {}),
    ],
)
def test_values_between_tags_have_the_type_of_the_schema(
    form: str, write: Any, written: dict[str, str], value: dict[str, Any]
) -> None:
    """What fits no type stays text, which the check of arguments refuses with a sentence."""
    found = read_calls(f"So: {write(**written)}\n{write(s='x')}", BY_NAME[form], TOOLS)
    assert [one.arguments for one in found if isinstance(one, Call)] == [value, {"s": "x"}]
    assert repr(found[0].arguments) == repr(value)  # 5 is no 5.0


@pytest.mark.parametrize(
    "text",
    ['[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "a1b2c3d4e"}]', "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{}"],
)
def test_a_call_keeps_the_id_that_the_policy_gave_it(text: str) -> None:
    assert [one.id for one in read("Mistral", text) if isinstance(one, Call)] == ["a1b2c3d4e"]


BROKEN = {
    "": "no valid JSON: Expecting value",
    '{"name": "add", "arguments": {"a": 4}': "no valid JSON: Expecting ',' delimiter: line 1 column 38",
    '{"name": "add", "arguments": {"a": NaN}}': "NaN is no finite number",
    '{"name": "add", "arguments": {"a": 1e999}}': "1e999 is no finite number",
    '{"name": "add", "arguments": {"a": "\\ud83d"}}': "surrogates not allowed",
    '{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}": "no valid JSON",
    '{"name": "add", "arguments": ' + '{"a":' * 100_000: "no valid JSON",
    '{"arguments": {"a": 4}}': "the call has no name",
    '{"name": "", "arguments": {}}': "the call has no name",
    '{"name": 5, "arguments": {}}': "the call has no name",
    '{"name": "add", "arguments": [4, 5]}': "the arguments of add are no JSON object",
    '{"name": "add", "arguments": "{}"}': "the arguments of add are no JSON object",
    '{"name": "add", "arguments": null}': "the arguments of add are no JSON object",
    '{"name": "add", "arguments": {}}}': "more text follows it",
    '["add"]': "the call is no JSON object with name and arguments",
    "add(4, 5)": "no valid JSON",
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_call_has_its_reason_and_the_next_is_read(text: str) -> None:
    wrong, right = read("Hermes", f'Yes. <tool_call>{text}</tool_call>\n<tool_call>{{"name": "time"}}</tool_call>')
    assert isinstance(wrong, WrongCall)
    assert wrong.fault is Fault.FORMAT
    assert BROKEN[text] in wrong.reason
    assert right == TIME


@pytest.mark.parametrize(
    ("form", "text", "reason"),
    [
        ("Llama", '<|python_tag|>search.call(query="x")', "no valid JSON"),
        ("Llama", '{"name": "add", "parameters": {"a": 4}', "no valid JSON"),
        ("Llama", '{"name": "add", "parameters": 4}', "the arguments of add are no JSON object"),
        ("Llama", '{"parameters": {"name": 4}}', "the call has no name"),
        ("Mistral", "[TOOL_CALLS]", "no valid JSON"),
        ("Mistral", "[TOOL_CALLS] []", "the call is no JSON object with name and arguments"),
        ("Mistral", '[TOOL_CALLS] [{"name": "add"', "no valid JSON"),
        ("Mistral", '[TOOL_CALLS] [{"arguments": {}}]', "the call has no name"),
        ("Mistral", "[TOOL_CALLS]add[ARGS]4", "the arguments of add are no JSON object"),
        ("Mistral", "[TOOL_CALLS]add", "no valid JSON"),
        ("DeepSeek", ALL, "no call with a name follows"),
        ("DeepSeek", f"{ALL}{BEGIN}{{}}{END}", "no call with a name follows"),
        ("DeepSeek", f"{BEGIN}function{SEP}\n```json\n{{}}\n```{END}", "the call has no name"),
        ("DeepSeek", f"{BEGIN}add{SEP}{{4}}{END}", "no valid JSON"),
        ("DeepSeek", f"{BEGIN}add{SEP}[]{END}", "the arguments of add are no JSON object"),
        ("Qwen XML", '<tool_call>{"name": "f"}</tool_call>', "expected <function=NAME>"),
        ("Qwen XML", "<tool_call><function=f><parameter=a>5</tool_call>", "the value of a is not closed"),
        ("Qwen XML", "<tool_call><function=f>5</function></tool_call>", "expected <function=NAME>"),
        ("Qwen XML", "<tool_call><function=f><parameter=a><tool_call></parameter><parameter=b>5</tool_call>",
         "the value of b is not closed"),
        ("GLM", "<tool_call></tool_call>", "expected NAME"),
        ("GLM", "<tool_call>f<arg_key>a</arg_key></tool_call>", "expected NAME"),
        ("Muse", "<atem:function_calls>f()", "expected <atem:invoke"),
        ("gpt-oss", " to=functions.f{}", "expected to=functions.NAME"),
        ("gpt-oss", " to=functions.f<|message|>{5}", "no valid JSON"),
        ("Gemma", "<|tool_call>f{}<tool_call|>", "expected call:NAME"),
        ("Gemma", "<|tool_call>call:f{a:1e400}<tool_call|>", "1e400 is no finite number"),
        ("Gemma", "<|tool_call>call:f{a:<b>}<tool_call|>", "no valid JSON"),
        ("LFM", "<|tool_call_start|>f()<|tool_call_end|>", "expected a list of calls"),
        ("LFM", "<|tool_call_start|>[f(a=nan)]<|tool_call_end|>", "no valid JSON"),
        ("LFM", "<|tool_call_start|>[]<|tool_call_end|>", "expected a list of calls"),
    ],
)  # fmt: skip
def test_a_broken_call_of_the_other_forms(form: str, text: str, reason: str) -> None:
    (wrong,) = read(form, text)
    assert isinstance(wrong, WrongCall)
    assert reason in wrong.reason


@pytest.mark.parametrize(
    ("text", "in_thought", "said"),
    [
        ('I ask. <tool_call>{"name": "time"}</tool_call> <tool_call>', False, "I ask. "),
        ("<think><tool_call></think>I ask. <tool_call>", False, "<think><tool_call></think>I ask. "),
        ("<tool_call></think>I ask. <tool_call>", True, "<tool_call></think>I ask. "),
        ("I ask nothing.", False, "I ask nothing."),
    ],
)
def test_what_is_said_before_the_first_call(text: str, in_thought: bool, said: str) -> None:
    assert before_calls(text, BY_NAME["Hermes"], in_thought=in_thought) == said


def test_one_wrong_call_of_a_list_leaves_the_others() -> None:
    assert read("Mistral", '[TOOL_CALLS] [{"name": "time"}, {"name": 4}, {"name": "time"}]')[::2] == [TIME, TIME]


CALL = '<tool_call>{"name": "time"}</tool_call>'


@pytest.mark.parametrize(
    ("text", "in_thought", "count"),
    [
        (f"<think>{CALL}</think>", False, 0), (f"<think>{CALL}</think>{CALL}", False, 1),
        (f"{CALL}<think>{CALL}</think>{CALL}", False, 2), (f"<think>{CALL}", False, 0),
        (f"{CALL}</think>{CALL}", True, 1), (CALL, True, 0), (f"{CALL}</think>", True, 0),
        (f"{CALL}</think><think>{CALL}</think>{CALL}", True, 1),
    ],
)  # fmt: skip
def test_a_call_inside_a_thought_is_none(text: str, in_thought: bool, count: int) -> None:
    assert read("Hermes", text, in_thought=in_thought) == [TIME] * count


T, M, AT = "<tool_call>", "[TOOL_CALLS]", "<|channel|>"
MARKS = {
    "Hermes": [T, "<tool_", T + '{"a":"', T + "{", "</tool_call>", T + '{"name": "f"}'],
    "Qwen XML": [XML, XML + "<parameter=a>", "<parameter=a>", XML + XML_END, "</parameter>", "<function=", xml(a="1")],
    "GLM": [T + "f", T + "f<arg_key>a</arg_key><arg_value>", "</arg_value>", "<arg_key>", glm(a="1")],
    "Mistral": [M, M + "f[ARGS]", M + 'f[ARGS]{"a":"', M + " [", M + "f{}"],
    "DeepSeek": [BEGIN, SEP, BEGIN + SEP, f"{BEGIN}f{SEP}\n```json\n", f"{BEGIN}f{SEP}{{", ALL, END, "<｜tool"],
    "gpt-oss": [AT + "x to=functions", " to=functions.f", AT, AT + "x to=functions.f<|message|>{"],
    "Gemma": ["<|tool_call>", f"<|tool_call>call:f{{a:{Q}", Q, "<tool_call|>", "<|tool_call>call:f{a:[1,"],
    "LFM": ["<|tool_call_start|>", "<|tool_call_start|>[f(a='", "<|tool_call_start|>[f(", "<|tool_call_end|>", "'"],
    "Muse": ["<atem:function_calls>", '<atem:function_calls><atem:invoke name="f"><atem:parameter name="a">'],
    "Llama": ["<|python_tag|>", "{", '{"name"', "}{", '{"name": "f"}', "</think>{", "<|python_tag|>{"],
}
ROWS = [(form, mark) for form, marks in MARKS.items() for mark in (*marks, "<think>", "</think>", "<think></think>")]


@pytest.mark.parametrize(("form", "mark"), ROWS)
def test_reading_is_linear_in_the_text(form: str, mark: str) -> None:
    """16,384 marks take at most 5 times as long as 4,096, and a moment; a quadratic reader takes 16 times as long."""
    assert BY_NAME.keys() == MARKS.keys()

    def seconds(count: int) -> float:
        text, tries = mark * count, []
        for _ in range(3):
            started = time.process_time()
            read(form, text)
            tries.append(time.process_time() - started)
        return min(tries)

    assert seconds(16_384) <= 5 * seconds(4_096) + 0.25


def test_a_turn_of_endless_calls_ends() -> None:
    found = read("Hermes", CALL * 3000)
    assert found[:1000] == [TIME] * 1000
    (rest,) = found[1000:]
    assert isinstance(rest, WrongCall)
    assert rest.reason == "a turn makes at most 1,000 calls"


PARTS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>", "<|python_tag|>", ALL]
PARTS += [BEGIN, SEP, END, "```json\n", "{", "}", "[", "]", '"name"', ":", '"f"', ",", '"arguments"', " ", "x", "\\"]


@given(st.lists(st.sampled_from(PARTS), max_size=20).map("".join), st.booleans())
def test_any_text_is_read(text: str, in_thought: bool) -> None:
    for form in FORMS:
        for entry in read_calls(text, form, in_thought=in_thought):
            assert isinstance(entry, WrongCall) or isinstance(entry.arguments, dict)
