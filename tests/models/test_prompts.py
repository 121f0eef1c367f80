"""Prompts as token ids: what a template is asked to render, and what the policy continues."""

from pathlib import Path

import pytest

from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.templates import hidden_tags
from grouprl.types import Problem, UserError

QUESTION = {"role": "user", "content": "Make 81 of 40 and 41."}
BEGUN = {"role": "assistant", "content": "Let me solve this step by step.\n<think>"}


def test_a_last_message_of_the_assistant_is_continued(tiny: Path):
    """As in TRL's data (trl/data_utils.py): nothing stands between it and the completion."""
    tokenizer = load_tokenizer(str(tiny))
    asked, begun = (
        tokenizer.decode(prompt_token_ids(Problem("a", messages), tokenizer, longest=500))
        for messages in ((QUESTION,), (QUESTION, BEGUN))
    )
    assert begun == asked + BEGUN["content"]


def test_an_earlier_message_of_the_assistant_is_closed(tiny: Path):
    tokenizer = load_tokenizer(str(tiny))
    ids = prompt_token_ids(Problem("a", (QUESTION, BEGUN, QUESTION)), tokenizer, longest=500)
    text = tokenizer.decode(ids)
    assert f"{BEGUN['content']}<|end|>" in text
    assert text.endswith("<|assistant|>")


def test_a_template_that_drops_the_message_is_refused(tiny: Path):
    tokenizer = load_tokenizer(str(tiny))
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message['role'] == 'user' %}{{ message['content'] }}{% endif %}{% endfor %}"
    )
    with pytest.raises(UserError, match="expected a chat template that renders its messages"):
        prompt_token_ids(Problem("a", (QUESTION, BEGUN)), tokenizer, longest=500)


def test_tags_that_are_special_tokens_are_found(tiny: Path):
    tokenizer = load_tokenizer(str(tiny))
    assert hidden_tags(tokenizer) == []
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    assert hidden_tags(tokenizer) == ["<think>", "</think>"]
