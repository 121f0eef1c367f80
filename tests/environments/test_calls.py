"""Reading calls in what a policy wrote: each form, broken ones, and thoughts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.environments.base import Call, Fault
from grouprl.environments.calls import FORMS, WrongCall, read_calls

BY_NAME = {form.name: form for form in FORMS}
SUM, TIME, F = Call("add", {"a": 4, "b": 5}), Call("time", {}), Call("f", {})
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


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
    ],
)  # fmt: skip
def test_calls_are_read(form: str, text: str, calls: list[Call]) -> None:
    assert read(form, text) == calls


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
    ],
)  # fmt: skip
def test_a_broken_call_of_the_other_forms(form: str, text: str, reason: str) -> None:
    (wrong,) = read(form, text)
    assert isinstance(wrong, WrongCall)
    assert reason in wrong.reason


def test_one_wrong_call_of_a_list_leaves_the_others() -> None:
    assert read("Mistral", '[TOOL_CALLS] [{"name": "time"}, {"name": 4}, {"name": "time"}]')[::2] == [TIME, TIME]


CALL = '<tool_call>{"name": "time"}</tool_call>'


@pytest.mark.parametrize(
    ("text", "in_thought", "count"),
    [
        (f"<think>{CALL}</think>", False, 0),
        (f"<think>{CALL}</think>{CALL}", False, 1),
        (f"{CALL}<think>{CALL}</think>{CALL}", False, 2),
        (f"<think>{CALL}", False, 0),
        (f"{CALL}</think>{CALL}", True, 1),
        (CALL, True, 0),
        (f"{CALL}</think>", True, 0),
        (f"{CALL}</think><think>{CALL}</think>{CALL}", True, 1),
    ],
)
def test_a_call_inside_a_thought_is_none(text: str, in_thought: bool, count: int) -> None:
    assert read("Hermes", text, in_thought=in_thought) == [TIME] * count


PARTS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<think>",
    "</think>",
    "<|python_tag|>",
    ALL,
    BEGIN,
    SEP,
]
PARTS += [END, "```json\n", "{", "}", "[", "]", '"name"', ":", '"f"', ",", '"arguments"', " ", "x", "\\"]


@given(st.lists(st.sampled_from(PARTS), max_size=20).map("".join), st.booleans())
def test_any_text_is_read(text: str, in_thought: bool) -> None:
    for form in FORMS:
        for entry in read_calls(text, form, in_thought=in_thought):
            assert isinstance(entry, WrongCall) or isinstance(entry.arguments, dict)
