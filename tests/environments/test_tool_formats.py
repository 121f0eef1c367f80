"""Formats of chat templates: the calls they write, and the ids of what follows a turn, against whole conversations."""

import importlib.util
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from grouprl.environments.base import Call
from grouprl.environments.calls import WrongCall
from grouprl.environments.formats import ToolFormat
from grouprl.supervised.scratch import new_tokenizer
from grouprl.types import UserError
from tool_templates import STYLES, ToolStyle, spaced_tokenizer, tool_tokenizer

NUMBER = {"type": "object", "properties": {"a": {"type": "integer", "description": "A number."}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": NUMBER}}
USER = {"role": "user", "content": "What is 4 + 5?"}
TOKENIZERS = {name: tool_tokenizer(style) for name, style in STYLES.items()}


def format_of(name: str, tools: Sequence[Any] = (TOOL,)) -> ToolFormat:
    """The format of a style's tokenizer."""
    return ToolFormat.of(TOKENIZERS[name], tools, STYLES[name].end_ids(TOKENIZERS[name]))


by_style = pytest.mark.parametrize("name", STYLES)
Exchange = tuple[list[dict[str, Any]], tuple[int, ...]]


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def rendered(found: ToolFormat, messages: list[dict[str, Any]], *, begin: bool = True) -> str:
    tools = [TOOL] if found.form else None
    return str(found.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=begin, tokenize=False))


def turn_of(calls: Sequence[Call], found: ToolFormat) -> dict[str, Any]:
    """A turn of the assistant as chat templates take it."""
    made = []
    for call in calls if found.makes_many_calls else calls[:1]:
        arguments = json.dumps(call.arguments, ensure_ascii=False) if found.arguments_are_text else call.arguments
        made.append({"type": "function", "id": call.id, "function": {"name": call.tool, "arguments": arguments}})
    return {"role": "assistant", "content": "", "tool_calls": made}


def of_results(found: ToolFormat, results: list[tuple[Call, str]], place: int) -> Exchange:
    """A turn with calls and its results; "turn0;" and so on mark the end of each."""
    results = [
        (Call(call.tool, {**call.arguments, "zz": f"turn{place};"}, f"a{place}b{n}c0000"), text)
        for n, (call, text) in enumerate(results)
    ]
    answers = [{"role": "tool", "name": call.tool, "tool_call_id": call.id, "content": text} for call, text in results]
    return [turn_of([call for call, _ in results], found), *answers], found.observation_ids(results, ended=True)


def of_message(found: ToolFormat, texts: tuple[str, str], place: int) -> Exchange:
    said, answer = texts
    turn = {"role": "assistant", "content": f"x{said}turn{place};"}
    return [turn, {"role": "user", "content": answer}], found.message_ids("user", answer, ended=True)


def check_whole(found: ToolFormat, exchanges: list[Exchange]) -> None:
    """What the template writes for the assistant, as if sampled, with the observations, is the whole conversation."""
    whole = rendered(found, [USER, *(message for messages, _ in exchanges for message in messages)])
    ids: list[int] = []
    begin = 0  # of what is not encoded yet
    end = "(?:" + "|".join(re.escape(one) for one in found.tokenizer.convert_ids_to_tokens(list(found.end_ids))) + ")"
    for place, (_, observation) in enumerate(exchanges):
        turn = re.compile(f".*turn{place};.*?{end}", re.DOTALL).match(whole, begin)
        assert turn
        ids += [*ids_of(found.tokenizer, turn[0]), *observation]
        shown = str(found.tokenizer.decode(observation, clean_up_tokenization_spaces=False))
        assert whole.startswith(shown, turn.end())
        begin = turn.end() + len(shown)
    assert begin == len(whole)
    assert ids == ids_of(found.tokenizer, whole)


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<[｜"), max_size=12)
values = st.recursive(st.none() | st.booleans() | st.integers() | words, lambda one: st.lists(one, max_size=2))
calls = st.builds(Call, st.sampled_from(["add", "find_word"]), st.dictionaries(words, values, max_size=2))
results = st.lists(st.lists(st.tuples(calls, words), min_size=1, max_size=3), min_size=1, max_size=3)


@cache
def drawn(strategy: Any, count: int) -> list[Any]:
    """Examples that all styles share, because to draw one takes longer than to test it."""
    found: list[Any] = []
    take = given(strategy)(lambda one: found.append(one))
    settings(max_examples=count, phases=[Phase.generate])(take)()
    return found


messages = st.lists(st.tuples(words, words), min_size=1, max_size=3)


@by_style
def test_turns_with_calls_and_their_results_are_the_whole_conversation(name: str) -> None:
    found = format_of(name)
    for turns in drawn(results, 8):
        check_whole(found, [of_results(found, turn, place) for place, turn in enumerate(turns)])


@by_style
def test_turns_and_messages_are_the_whole_conversation(name: str) -> None:
    if not STYLES[name].takes_messages:
        with pytest.raises(UserError, match="ends each turn of the assistant"):
            format_of(name, [])
        return
    found = format_of(name, [TOOL] if name in ("hermes", "gemma") else [])
    # The beginning of a thought is gone once the turn is an earlier one.
    most = 1 if STYLES[name].begins_thought[0] else None
    for turns in drawn(messages, 8):
        check_whole(found, [of_message(found, turn, place) for place, turn in enumerate(turns[:most])])


@by_style
def test_the_form_is_the_templates(name: str) -> None:
    tokenizer, style = TOKENIZERS[name], STYLES[name]
    found = format_of(name)
    assert found.form is not None
    assert (found.form.name, found.makes_many_calls) == (style.form, style.many)
    assert found.begins_thought == style.begins_thought
    assert found.rewrites == style.rewrites
    assert found.takes_messages == style.takes_messages
    assert found.tokenizer is tokenizer
    assert format_of(name) is found  # once per tokenizer


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain_word = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)


@cache
def any_calls(keys: Any) -> Any:
    """Calls with arguments of these keys, which objects in them have too; and a thought before them."""
    value = st.recursive(
        any_text | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans() | st.integers(),
        lambda one: st.lists(one, max_size=2) | st.dictionaries(keys, one, max_size=2),
    )
    call = st.builds(Call, plain_word, st.dictionaries(keys, value, max_size=3))
    return st.tuples(st.lists(call, min_size=1, max_size=3), any_text)


WITH_WORDS = ("Qwen XML", "GLM", "Gemma", "LFM", "Muse")  # forms whose keys are words


@by_style
def test_calls_come_back_exactly(name: str) -> None:
    """What the template writes, encoded and decoded, is the calls again: names, arguments, unicode, escapes."""
    for made, thought in drawn(any_calls(plain_word if STYLES[name].form in WITH_WORDS else any_text), 12):
        check_calls(name, made, thought)


def check_calls(name: str, made: list[Call], thought: str) -> None:
    tokenizer = TOKENIZERS[name]
    made = made if STYLES[name].many else made[:1]
    made = [Call(f"{one.tool}{place}", one.arguments, f"a{place}b00c000") for place, one in enumerate(made)]
    tools = []
    for one in made:  # where a value may be text or a number, the schema decides
        schemas = {key: {"type": "string"} if isinstance(value, str) else {} for key, value in one.arguments.items()}
        function = {"name": one.tool, "parameters": {"type": "object", "properties": schemas}}
        tools.append({"type": "function", "function": function})
    found = format_of(name, tools)
    turn = rendered(found, [USER, turn_of(made, found)], begin=False)
    prompt = rendered(found, [USER], begin=True)
    start = len(prompt) if turn.startswith(prompt) else len(rendered(found, [USER], begin=False))
    text = found.turn_text(ids_of(tokenizer, turn[start:].rstrip("\n")))
    assert not text.endswith(tokenizer.eos_token)
    if found.begins_thought[0]:
        text = f"{thought}</think>" + text
    assert found.calls(text) == made
    with_ids = [call.id for call in found.calls(text) if isinstance(call, Call)]
    assert with_ids == ([call.id for call in made] if name.startswith("mistral") else [""] * len(made))
    if name != "deepseek_r1":  # its prompt begins a thought, which a turn with calls alone does not end
        assert [one for one in found.calls(found.written("", made)) if isinstance(one, Call)] == made


@by_style
@pytest.mark.parametrize("ended", [True, False])
def test_an_end_token_is_added_where_the_policy_wrote_none(name: str, ended: bool) -> None:
    found = format_of(name)
    for ids in (
        lambda one: found.observation_ids([(Call("add", {}), "9")], ended=one),
        lambda one: found.message_ids("user", "9", ended=one) if found.takes_messages else (found.end_ids[0],)[one:],
    ):
        assert ids(False)[0] in found.end_ids
        assert ids(False)[1:] == ids(True)


@by_style
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_text_cannot_write_special_tokens(name: str, data: st.DataObject) -> None:
    """A result, a name or an id that is hostile stays a text: the marks are those of an empty result."""
    tokenizer, found, style = TOKENIZERS[name], format_of(name), STYLES[name]
    marks = [*style.special, *style.added, "<|end|>", "<|user|>"]
    part = st.sampled_from([*marks, *(one[:3] for one in marks), *(one[3:] for one in marks), " ", "\n", '"', "x"])
    texts = data.draw(st.lists(st.lists(part, max_size=5).map("".join), min_size=1, max_size=3))
    known = set(tokenizer.convert_tokens_to_ids(marks))

    def marks_in(texts: list[str], call: Call | WrongCall) -> list[int]:
        both = found.observation_ids([(call, text) for text in texts], ended=False)
        both += tuple(found.message_ids("user", texts[0], ended=False)) if found.takes_messages else ()
        return [token for token in both if token in known]

    hostile = data.draw(st.sampled_from([Call(texts[0], {}, texts[0]), WrongCall(texts[0], "broken"), Call("add", {})]))
    assert marks_in(texts, hostile) == marks_in(["x"] * len(texts), Call("add", {}))
    shown = str(tokenizer.decode(found.observation_ids([(hostile, text) for text in texts], ended=True)))
    for text in texts:
        assert text in shown or json.dumps(text, ensure_ascii=False) in shown


def test_a_mark_across_the_edge_of_a_text_is_none() -> None:
    """The template's own text ends in what begins a mark."""
    tokenizer = tool_tokenizer(STYLES["qwen2"])
    tokenizer.chat_template = tokenizer.chat_template.replace("<tool_response>\\n", "<").replace("\\n</tool", "</tool")
    found = ToolFormat.of(tokenizer, [TOOL])
    for text in ("|im_end|>", "tool_call>", "|im_start|"):
        ids = found.observation_ids([(Call("add", {}), text)], ended=True)
        assert ids.count(tokenizer.eos_token_id) == 1
        assert f"\n<{text}</tool_response>" in str(tokenizer.decode(ids))
        assert tokenizer.convert_tokens_to_ids("<tool_call>") not in ids


@by_style
@pytest.mark.parametrize(("scheme", "strips"), [("first", False), ("always", True), ("never", False)])
def test_other_tokenizers_are_as_exact(name: str, scheme: str, strips: bool) -> None:
    """A text that is encoded apart would begin with a space of its own, or keep the one that a token takes."""
    style = STYLES[name]
    tokenizer = tool_tokenizer(style, spaced_tokenizer(scheme), strips=strips)
    found = ToolFormat.of(tokenizer, [TOOL], style.end_ids(tokenizer))
    turn = [(Call("add", {"a": 4}, "a1b2c3d4e"), "  x é9 \n"), (Call("add", {"zz": "turn;"}, "b1b2c3d4e"), "y")]
    answers = [{"role": "tool", "name": "add", "tool_call_id": call.id, "content": text} for call, text in turn]
    called = turn_of([call for call, _ in turn] if found.makes_many_calls else [turn[1][0]], found)
    whole = rendered(found, [USER, called, *answers])
    end_token = min(style.ends or style.special[:1], key=lambda one: whole.find(one, whole.index("turn;")) % 1_000_000)
    end = whole.index(end_token, whole.index("turn;")) + len(end_token)
    ids = [*ids_of(tokenizer, whole[:end]), *found.observation_ids(turn, ended=True)]
    assert ids == ids_of(tokenizer, whole)
    plain, hostile = (
        found.observation_ids([(turn[0][0], f"é{text}é")], ended=True) for text in ("", "".join(style.special))
    )
    known = set(tokenizer.convert_tokens_to_ids([*style.special, *style.added]))
    assert [one for one in hostile if one in known] == [one for one in plain if one in known]


def test_half_of_a_surrogate_pair_is_shown_as_a_question_mark() -> None:
    found = ToolFormat.of(TOKENIZERS["qwen2"], [TOOL])
    assert found.message_ids("user", "a\ud800b", ended=True) == found.message_ids("user", "a?b", ended=True)


def test_a_template_without_tools_serves_a_text_game() -> None:
    tokenizer = new_tokenizer(["a"], 300)
    found = ToolFormat.of(tokenizer)
    assert str(tokenizer.decode(found.message_ids("user", "Go.", ended=False))) == "<|end|><|user|>Go.<|assistant|>"
    assert found.calls('<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>') == []


HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ '<|' + m.role + '|>' }}"
CALLS = "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function | tojson + '</tool_call>' }}{% endfor %}"
TAIL = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
END = "{% if m.role == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "renders a conversation, got no template"),
        (HEAD[HEAD.index("{% for") :] + "{{ m.content }}" + CALLS + END, "renders tools, got a prompt without them"),
        (HEAD.replace("tools |", "tools.x.y |") + "{{ m.content }}" + CALLS + END, "renders tools, got UndefinedError"),
        (HEAD + "{{ m.content }}" + END, r"known form \(Hermes, .*, Llama\), got '<\|end\|>'"),
        (HEAD + "{{ m.content }}" + CALLS.replace("tool_call>", "do>") + END, r"known form .*got '<do>"),
        (HEAD + "{% if m.role != 'tool' %}{{ m.content }}{% endif %}" + CALLS + END, "renders 1 results of tools"),
        (
            HEAD + "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ m.content }}" + CALLS + END,
            "renders 1 results of tools, got TemplateError: no tools",
        ),
        (HEAD + "{{ m.content }}" + CALLS + "{% endfor %}", r"ends each turn of the assistant with <\|end\|>"),
        (HEAD + "{{ m.content }}" + CALLS + END.replace("'<|end|>'", "'<|end|>Bye.'"), "ends each turn .*Bye"),
        (HEAD + "{{ m.content + m.content if m.role == 'tool' else m.content }}" + CALLS + END, "renders 1 results"),
    ],
)
def test_a_template_that_cannot_hold_the_conversation_is_refused(template: str | None, message: str) -> None:
    tokenizer = new_tokenizer(["a"], 300)
    tokenizer.name_or_path, tokenizer.chat_template = "a-model", template and template + TAIL
    with pytest.raises(
        UserError, match=rf"chat template of a-model: expected one that .*{message}.*chat_template=tools"
    ):
        ToolFormat.of(tokenizer, [TOOL])


def test_the_models_other_end_tokens_end_a_turn_too() -> None:
    """Gemma's tokenizer has <eos>, and its generation configuration names the token of the template."""
    tokenizer = TOKENIZERS["qwen2"]
    other, end = tokenizer.convert_tokens_to_ids(["<|end|>", "<|im_end|>"])
    with pytest.raises(UserError, match=r"ends each turn of the assistant with <\|end\|>"):
        ToolFormat.of(tokenizer, [TOOL], [other])
    found = ToolFormat.of(tokenizer, [TOOL], [other, end])
    assert found.turn_text([*ids_of(tokenizer, "9"), other]) == found.turn_text([*ids_of(tokenizer, "9"), end]) == "9"
    assert found.message_ids("user", "9", ended=False)[0] == end


def real_templates() -> list[Path]:
    """TRL's package has the templates of families as their makers published them (the extra `bench`)."""
    spec = importlib.util.find_spec("trl")
    folder = Path(spec.origin).parent / "chat_templates" if spec and spec.origin else Path("none")
    return [path for name in REAL if (path := folder / f"{name}.jinja").exists()]


REAL = {"qwen2_5": "qwen2", "qwen3": "qwen3", "qwen3_instruct_2507": "qwen2", "qwen3_vl": "qwen2"}
REAL |= {"llama3_1": "llama", "llama3_2": "llama", "glm4moe": "glm", "gptoss": "harmony", "muse_glimmer": "muse"}
REAL |= dict.fromkeys(("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"), "xml")
REAL |= dict.fromkeys((f"nemotron_3_{one}" for one in ("nano", "super", "ultra", "5_lightning")), "xml")
REAL |= dict.fromkeys(("gemma4", *(f"gemma4_v{n}" for n in (2, 3, 4, 5)), "diffusion_gemma"), "gemma")
REAL |= dict.fromkeys(("lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"), "lfm")


@pytest.mark.parametrize("path", real_templates(), ids=lambda path: path.stem)
def test_published_templates(path: Path) -> None:
    style = STYLES[REAL[path.stem]]
    tokenizer = tool_tokenizer(ToolStyle("qwen2", style.special, style.added))
    tokenizer.chat_template = path.read_text()
    found = ToolFormat.of(tokenizer, [TOOL], style.end_ids(tokenizer))
    assert found.form is not None
    assert (found.form.name, found.makes_many_calls) == (style.form, style.many)
    assert found.takes_messages == style.takes_messages
    calls = [Call("add", {"a": n}) for n in range(3 if style.many else 1)]
    assert [one for one in found.calls(found.written("", calls)) if isinstance(one, Call)] == calls
    if any(found.begins_thought) or path.stem == "gemma4_v2":  # which writes results as messages of a role of their own
        return
    for count in (1, 2, 3):
        turn = [(Call("add", {"a": n}), f" {n}\n") for n in range(count)]
        check_whole(found, [of_results(found, turn, place) for place in range(3)])
