"""A chat template is a program that came with a checkpoint: it gets little time and memory."""

import time
from pathlib import Path

import pytest

from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.types import Problem, UserError

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
