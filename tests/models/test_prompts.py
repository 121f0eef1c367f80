"""Prompts as token ids: what the chat template of a model or a configuration renders, and what the policy continues."""

import json
import time
from pathlib import Path

import pytest
from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase
from transformers import PreTrainedTokenizerBase as Tokenizer

from grouprl.config.run import ModelConfig
from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import completion_texts, prompt_token_ids
from grouprl.models.templates import (
    folds_system,
    hidden_tags,
    is_rendered,
    is_rendered_chat,
    lost_contents,
    prepare_template,
)
from grouprl.rewards.calls import CallValues, call_keywords
from grouprl.rewards.outcomes import rows_of
from grouprl.types import Completion, Group, Message, Problem, StopReason, UserError
from small_runs import grouprl, small_settings, write_rows
from templates import BOS, styled_tokenizer

QUESTION = {"role": "user", "content": "Make 81 of 40 and 41."}
BEGUN = {"role": "assistant", "content": "Let me solve this step by step.\n<think>"}


@pytest.fixture
def tokenizer(tiny: Path) -> Tokenizer:
    return load_tokenizer(str(tiny))


def test_a_last_message_of_the_assistant_is_continued(tokenizer: Tokenizer):
    """As in TRL's data (trl/data_utils.py): nothing stands between it and the completion."""
    asked, begun = (
        tokenizer.decode(prompt_token_ids(Problem("a", messages), tokenizer, longest=500))
        for messages in ((QUESTION,), (QUESTION, BEGUN))
    )
    assert begun == asked + BEGUN["content"]


def test_an_earlier_message_of_the_assistant_is_closed(tokenizer: Tokenizer):
    ids = prompt_token_ids(Problem("a", (QUESTION, BEGUN, QUESTION)), tokenizer, longest=500)
    text = tokenizer.decode(ids)
    assert f"{BEGUN['content']}<|end|>" in text
    assert text.endswith("<|assistant|>")


def test_a_template_that_drops_the_message_is_refused(tokenizer: Tokenizer):
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message['role'] == 'user' %}{{ message['content'] }}{% endif %}{% endfor %}"
    )
    with pytest.raises(UserError, match="expected a chat template that keeps the assistant's last message"):
        prompt_token_ids(Problem("a", (QUESTION, BEGUN)), tokenizer, longest=500)


def test_tags_that_are_special_tokens_are_found(tokenizer: Tokenizer):
    assert hidden_tags(tokenizer) == []
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    assert hidden_tags(tokenizer) == ["<think>", "</think>"]


@pytest.mark.parametrize("last", ["<think>", "a </think> b", "ends in a space ", "1 + 1 = <|user|>"])
def test_what_the_prompt_begins_is_never_closed(tokenizer: Tokenizer, last: str):
    ids = prompt_token_ids(Problem("a", (QUESTION, {**BEGUN, "content": last})), tokenizer, longest=500)
    assert tokenizer.decode(ids).endswith("<|assistant|>" + last)


def test_rewards_get_the_beginning_with_the_completion_as_in_trl():
    """TRL pops the message from the prompt and puts its content before the completion (grpo_trainer.py)."""
    completion = Completion(0, (5,), (0.0,), (0.0,), " 40 + 41</think>", StopReason.END, 0)
    given = call_keywords([Group(Problem("a", (QUESTION, BEGUN)), (1,), (completion,))])
    assert given["prompts"] == [[QUESTION]]
    assert given["completions"] == [[{"role": "assistant", "content": BEGUN["content"] + " 40 + 41</think>"}]]


def test_a_reasoning_step_of_a_begun_completion_ends_in_its_own_text():
    """The beginning has 39 characters: a step that ends in it is none of the completion's."""
    assert len(BEGUN["content"]) == 39
    completion = Completion(0, (5,), (0.0,), (0.0,), " 40 + 41", StopReason.END, 0)
    group = Group(Problem("a", (QUESTION, BEGUN)), (1,), (completion,))
    assert rows_of({"steps": CallValues([((10, 1.0), (44, 0.5))], {})}, group) == [{"steps": ((5, 0.5),)}]


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("<|user|>What is 2 + 3?<|assistant|>", True),
        ("<|system|>Answer.<|user|>2 + 3?<|assistant|>", True),
        ("What is 2 + 3?", False),
        ("Is 2 < 3 | 4 > 3?", False),
    ],
)
def test_a_text_with_the_template_in_it_is_known(text: str, has: bool):
    tokenizer = load_tokenizer("abacus")
    assert is_rendered(text, tokenizer) is has
    problem = Problem("a", text)
    assert tokenizer.decode(prompt_token_ids(problem, tokenizer, longest=500)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("named", [True, False])
def test_tags_that_are_special_tokens_stay_in_the_text_and_others_do_not(tokenizer: Tokenizer, named: bool):
    """Special tokens are named in the tokenizer's configuration, or only marked as such among the added tokens."""
    if named:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>", "<other>"]})
    else:
        tokenizer.add_tokens([AddedToken(one, special=True) for one in ("<think>", "</think>", "<other>")])
        assert "<think>" not in tokenizer.all_special_tokens
    assert hidden_tags(tokenizer) == ["<think>", "</think>"]
    ids = [tokenizer.convert_tokens_to_ids("<think>"), *tokenizer("7")["input_ids"]]
    ids += [*tokenizer.convert_tokens_to_ids(["</think>", "<other>"]), tokenizer.eos_token_id]
    assert completion_texts([ids], tokenizer) == ["<think>7</think>"]


def test_tags_that_are_ordinary_tokens_are_not_hidden(tokenizer: Tokenizer):
    """Qwen3's are added tokens that a text keeps."""
    tokenizer.add_tokens([AddedToken(one, special=False) for one in ("<think>", "</think>")])
    ids = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    assert hidden_tags(tokenizer) == []
    assert completion_texts([[*ids, tokenizer.eos_token_id]], tokenizer) == ["<think></think>"]


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
RENDERED = "<|im_start|>user\nWhat is 7 + 8?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("content", "once"),
    [
        (RENDERED, True),
        ("<|im_start|>system\nAdd.<|im_end|>\n" + RENDERED, True),
        (RENDERED + "<think>\n", True),
        ("What is 7 + 8?", False),
        ("What does <|im_start|>assistant mean?", False),
        ("Continue: " + RENDERED, False),
    ],
)
def test_a_users_message_that_is_rendered_already_is_not_rendered_again(tokenizer: Tokenizer, content: str, once: bool):
    tokenizer.chat_template = CHATML
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    message = {"role": "user", "content": content}
    assert is_rendered_chat((message,), tokenizer) is once
    whole = content if once else f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    ids = prompt_token_ids(Problem("a", (message,)), tokenizer, longest=500)
    assert list(ids) == tokenizer(whole)["input_ids"]


def test_the_plain_template_is_known_too():
    tokenizer = load_tokenizer(ModelConfig(path="abacus", chat_template="plain"))
    ids = prompt_token_ids(Problem("a", ({"role": "user", "content": "What is 2 + 3?"},)), tokenizer, longest=500)
    text = tokenizer.apply_chat_template([QUESTION], add_generation_prompt=True, tokenize=False)
    for content, once in ((text, True), ("User: hi\nAssistant: hello", False)):
        assert is_rendered(content, tokenizer) is once
    assert ids


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (["<|user|>What is {} + 1?<|assistant|>"], "have the chat template in them already: they are used as they are"),
        (
            ["What is {} + 1?"] * 3 + ["What is {} + 1? <|end|>"],
            "control token in their messages: 5 of 20, the first <|end|> in problem 'jsonl/train/3' (",
        ),
    ],
)
def test_a_run_says_what_the_prompts_of_its_data_hold(tmp_path: Path, prompts: list[str], said: str):
    rows = [{"prompt": prompts[n % len(prompts)].format(n), "answer": str(n + 1)} for n in range(20)]
    settings = small_settings(tmp_path / "runs", steps=1, evaluation={"problems": 1, "samples": 0})
    ended = grouprl(
        *("train", "--model", "abacus", "--task", write_rows(tmp_path / "rows.jsonl", rows)),
        *("task.arguments.messages=true", *settings),
    )
    assert ended.code == 0, ended.text
    assert ended.text.count(said) == 1
    assert ended.text.count("Warning: ") == 1


TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


def test_the_chat_template_shows_the_problems_tools(tiny: Path):
    tokenizer = load_tokenizer(str(tiny))
    tokenizer.chat_template = "{{ tools | tojson if tools is not none else 'none' }}{{ messages[0].content }}"
    for tools, shown in (((TOOL,), json.dumps([TOOL])), ((), "none")):
        ids = prompt_token_ids(Problem("a", (QUESTION,), tools=tools), tokenizer, longest=1000)
        assert tokenizer.decode(ids) == shown + QUESTION["content"]
    with pytest.raises(UserError, match="problem 'a': expected chat messages"):
        prompt_token_ids(Problem("a", "What is 2 + 3?", tools=(TOOL,)), tokenizer, longest=1000)


SYSTEM: Message = {"role": "system", "content": "Think first."}
USER: Message = {"role": "user", "content": "4 + 5 = ?"}
TURNS: tuple[Message, ...] = (USER, {"role": "assistant", "content": "9"}, {"role": "user", "content": "And 9 + 1?"})
WITHOUT_SYSTEM = {
    "raises": "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}",
    "drops": "{% for m in messages if m['role'] != 'system' %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}",
}


def rendered(tokenizer: PreTrainedTokenizerBase, *messages: Message) -> str:
    ids = prompt_token_ids(Problem("p", messages), tokenizer, longest=1000)
    return str(tokenizer.decode(ids))


def of_file(tmp_path: Path, model: Path, template: str, **settings: object) -> PreTrainedTokenizerBase:
    (tmp_path / "own.jinja").write_text(template)
    return load_tokenizer(ModelConfig(path=str(model), chat_template=str(tmp_path / "own.jinja"), **settings))  # type: ignore[arg-type]


def test_plain_has_the_form_of_r1_zeros_prompt(tiny: Path) -> None:
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny), chat_template="plain"))
    assert rendered(tokenizer, SYSTEM, *TURNS) == (
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. Think first."
        "\nUser: 4 + 5 = ?\nAssistant: 9\nUser: And 9 + 1?\nAssistant:"
    )
    assert rendered(tokenizer, USER).endswith("solves it.\nUser: 4 + 5 = ?\nAssistant:")


def test_question_is_a_list_of_questions_with_their_answers(tiny: Path) -> None:
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny), chat_template="question"))
    assert rendered(tokenizer, SYSTEM, *TURNS) == (
        "Think first.\n\nQuestion: 4 + 5 = ?\nAnswer: 9\n\nQuestion: And 9 + 1?\nAnswer:"
    )


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("system", [(), (SYSTEM,)])
def test_tools_is_chatml_with_calls_and_results(tiny: Path, system: tuple[Message, ...]) -> None:
    """A turn ends with the tokenizer's own end token; results that follow each other are one turn of the user."""
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny), chat_template="tools"))
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "é"}}}
    turns = [dict(message) for message in (*system, USER)]
    turns += [{"role": "assistant", "content": "I add.", "tool_calls": [call, call]}]
    turns += [{"role": "tool", "content": "9"}, {"role": "tool", "content": "9"}]
    turns += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "9"}]
    called = '<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'
    shown = "<tool_response>\n9\n</tool_response>"
    told = f"<|im_start|>system\n{'Think first.' if system else ''}"
    begin, rest = (
        "<|im_start|>assistant\n",
        (
            f"<|im_start|>user\n4 + 5 = ?<|end|>\n<|im_start|>assistant\nI add.\n{called}\n{called}<|end|>\n"
            f"<|im_start|>user\n{shown}\n{shown}<|end|>\n<|im_start|>assistant\n{called}<|end|>\n"
            f"<|im_start|>user\n{shown}<|end|>\n"
        ),
    )
    offered = f"You can call tools:\n<tools>\n{json.dumps(ADD)}\n</tools>\nTo call one, write:\n"
    form = '<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call><|end|>\n'
    gap = "\n\n" if system else ""
    assert tokenizer.apply_chat_template(turns, tools=[ADD], add_generation_prompt=True, tokenize=False) == (
        told + gap + offered + form + rest + begin
    )
    assert tokenizer.apply_chat_template(turns, tokenize=False) == (f"{told}<|end|>\n" if system else "") + rest


def test_plain_begins_with_bos_where_the_tokenizer_begins_a_text_with_it() -> None:
    for adds, begins in ((f"{BOS} $A", True), ("$A", False)):
        tokenizer = styled_tokenizer(adds=adds)
        prepare_template(tokenizer, "model", "plain")
        assert rendered(tokenizer, USER).startswith(f"{BOS}A conversation" if begins else "A conversation")
        assert rendered(tokenizer, USER).count(BOS) == begins


@pytest.mark.parametrize("adds", ["$A", f"{BOS} $A"])
def test_a_template_that_writes_bos_twice_gives_it_once(adds: str) -> None:
    tokenizer = styled_tokenizer(adds=adds)
    tokenizer.chat_template = "{{ bos_token + '<s>' + messages[-1].content }}"
    assert rendered(tokenizer, USER) == f"{BOS}4 + 5 = ?"


@pytest.mark.parametrize("template", WITHOUT_SYSTEM.values(), ids=WITHOUT_SYSTEM)
def test_a_system_message_without_a_role_is_in_the_first_user_message(
    tiny: Path, tmp_path: Path, template: str
) -> None:
    tokenizer = of_file(tmp_path, tiny, "\n" + template)
    assert folds_system(tokenizer)
    assert rendered(tokenizer, SYSTEM, *TURNS) == "\n<user>Think first.\n\n4 + 5 = ?<assistant>9<user>And 9 + 1?"
    assert rendered(tokenizer, *TURNS) == "\n<user>4 + 5 = ?<assistant>9<user>And 9 + 1?"
    assert rendered(tokenizer, SYSTEM) == "\n<user>Think first."
    # It is a part of what is saved, and nothing is folded twice.
    tokenizer.save_pretrained(tmp_path / "saved")
    again = load_tokenizer(str(tmp_path / "saved"))
    assert again.chat_template == tokenizer.chat_template


def test_templates_with_a_system_role_stay_as_they_are(tiny: Path) -> None:
    assert load_tokenizer(str(tiny)).chat_template == AutoTokenizer.from_pretrained(tiny).chat_template
    for style in ("qwen", "llama", "mistral", "gemma", "deepseek"):
        tokenizer = styled_tokenizer(style)
        before = tokenizer.chat_template
        prepare_template(tokenizer, "model")
        assert tokenizer.chat_template == before


def test_arguments_reach_every_rendering(tiny: Path, tmp_path: Path) -> None:
    template = (
        "{% macro turn(m) %}{{ m.content + ('!' if loud else '') }}{% endmacro %}"
        "{% for m in messages %}{{ m.role + ': ' + turn(m) + '\n' }}{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think></think>' + note }}{% endif %}"
    )
    given = {"enable_thinking": False, "loud": True, "note": 'ä "quoted" \\ %} 🙂'}
    tokenizer = of_file(tmp_path, tiny, template, chat_template_kwargs=given)
    expected = tokenizer.apply_chat_template([dict(USER)], tokenize=False, chat_template=template, **given)
    assert expected == 'user: 4 + 5 = ?!\n<think></think>ä "quoted" \\ %} 🙂'
    assert rendered(tokenizer, USER) == expected
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = ModelConfig(path=str(tmp_path / "saved"))
    assert rendered(load_tokenizer(saved), USER) == expected
    louder = saved.model_copy(update={"chat_template_kwargs": {"loud": False}})
    assert rendered(load_tokenizer(louder), USER).startswith("user: 4 + 5 = ?\n")  # the newest value counts


def test_arguments_and_files_that_cannot_be_used_are_one_sentence(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected variables of the chat template.*enable_thinkng, which it does not"):
        of_file(tmp_path, tiny, "{{ enable_thinking }}", chat_template_kwargs={"enable_thinkng": False})
    with pytest.raises(
        UserError, match=r"model.chat_template: expected null, plain, question, tools or a file.*nowhere.jinja"
    ):
        load_tokenizer(ModelConfig(path=str(tiny), chat_template=str(tmp_path / "nowhere.jinja")))


def test_what_a_template_does_to_the_history_is_found() -> None:
    messages = (USER, {"role": "assistant", "content": "<think>4 and 5</think>9"}, TURNS[2])
    assert lost_contents(messages, styled_tokenizer("deepseek")) == ["<think>4 and 5</think>9"]
    assert lost_contents(messages, styled_tokenizer("mistral")) == []


# A template is a program that came with a checkpoint: it gets little time and memory

ASKED = Problem("one", ({"role": "user", "content": "2 + 2 = ?"},))
HANGS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
POWER = "{{ 10 ** (10 ** 8) }}"  # one operation of C, which no handler in Python interrupts
GROWS = "{% set n = namespace(x='x') %}{% for a in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "template", [pytest.param(HANGS, marks=pytest.mark.slow), POWER, GROWS], ids=["loop", "power", "memory"]
)
def test_a_template_that_hangs_or_grows_is_refused(tiny: Path, template: str):
    tokenizer = load_tokenizer(str(tiny))
    tokenizer.chat_template = template
    began = time.monotonic()
    with pytest.raises(UserError, match="the template is damaged or hostile"):
        prompt_token_ids(ASKED, tokenizer, longest=100)
    assert time.monotonic() - began < 60


def test_a_template_that_raises_is_one_sentence(tiny: Path):
    tokenizer = load_tokenizer(str(tiny))
    for template, words in (
        ("{{ raise_exception('no system here') }}", "no system here"),
        ("{% for %}", "TemplateSyntax"),
    ):
        tokenizer.chat_template = template
        with pytest.raises(UserError, match=rf"problem 'one': expected a chat template that renders.*{words}"):
            prompt_token_ids(ASKED, tokenizer, longest=100)
