"""Prompts as token ids: what a template is asked to render, and what the policy continues."""

import json
from pathlib import Path

import pytest
from transformers import AddedToken
from transformers import PreTrainedTokenizerBase as Tokenizer

from grouprl.config.run import ModelConfig
from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import completion_texts, prompt_token_ids
from grouprl.models.templates import hidden_tags, is_rendered, is_rendered_chat
from grouprl.rewards.calls import CallValues, call_keywords
from grouprl.rewards.outcomes import rows_of
from grouprl.types import Completion, Group, Problem, StopReason, UserError
from small_runs import grouprl, small_settings, write_rows

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
