"""Chat templates as a run uses them: the built-in one, a file, their arguments, models without a system role.

What a run changes becomes a part of the template, so that a saved checkpoint renders what its policy was trained on.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.files import read_needed
from grouprl.models.names import PLAIN, QUESTION, TOOLS
from grouprl.types import Message, UserError

_SECONDS, _BYTES = 2, 256 << 20
_MOST_TEMPLATE = 1 << 20
_WALL_SECONDS = 60.0  # a forked process can inherit a lock that no thread of it releases

# For base models, in the form of R1-Zero's prompt (arXiv:2501.12948, table 1), whose instruction is the system message.
_PLAIN_TEMPLATE = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it."
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ ' ' + message['content'] }}"
    "{% else %}{{ '\\n' + ('Assistant' if message['role'] == 'assistant' else 'User') + ': ' + message['content'] }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '\\nAssistant:' }}{% endif %}"
)
# Questions with their answers, the form of few-shot prompts for base models (arXiv:2005.14165, appendix G).
_QUESTION_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ '\nAnswer: ' + message['content'] + '\n\n' }}"
    "{% else %}{{ 'Question: ' + message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\nAnswer:' }}{% endif %}"
)
# ChatML with the calls of Hermes and Qwen2.5, for base models and for templates without tools. The tokenizer's own end
# token ends a turn, because the policy ends one with it.
_TOOLS_TEMPLATE = r"""{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if system or tools %}{{- '<|im_start|>system\n' + system + ('\n\n' if system and tools else '') }}
{%- if tools %}{{- 'You can call tools:\n<tools>' }}{% for tool in tools %}{{- '\n' + tool | tojson }}{% endfor %}
{{- '\n</tools>\nTo call one, write:\n<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>' }}
{%- endif %}{{- eos_token + '\n' }}{% endif %}{% for message in messages %}{% if message.role == 'tool' %}
{{- '' if loop.previtem.role == 'tool' else '<|im_start|>user' }}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{{- '' if (loop.nextitem or {}).role == 'tool' else eos_token + '\n' }}
{%- elif not loop.first or message.role != 'system' %}{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}{{- '\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\n' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson + '\n</tool_call>' }}
{%- endfor %}{{- eos_token + '\n' }}{% endif %}{% endfor %}{{- '<|im_start|>assistant\n' if add_generation_prompt }}"""
# Ends with an expression, because the newline after a block would be trimmed from the template that follows.
_FOLD = (
    "{% if messages[0]['role'] == 'system' %}{% if messages | length > 1 and messages[1]['role'] == 'user' %}"
    "{% set messages = [{'role': 'user', 'content': messages[0]['content'] + '\\n\\n' + messages[1]['content']}]"
    " + messages[2:] %}{% else %}"
    "{% set messages = [{'role': 'user', 'content': messages[0]['content']}] + messages[1:] %}"
    "{% endif %}{% endif %}{{ '' }}"
)
_BUILT_IN = {PLAIN: _PLAIN_TEMPLATE, QUESTION: _QUESTION_TEMPLATE, TOOLS: _TOOLS_TEMPLATE}
_SYSTEM: Message = {"role": "system", "content": "Answer with a number."}
_USER: Message = {"role": "user", "content": "What is 2 + 3?"}
_FOLDED: dict[str, bool] = {}  # by template: whether it gets _FOLD
_ASKED: dict[tuple[str, str | None], str] = {}  # by template and BOS: a rendered question


def prepare_template(
    tokenizer: PreTrainedTokenizerBase,
    path: str,
    template: str | None = None,
    arguments: Mapping[str, bool | int | float | str] = MappingProxyType({}),
) -> None:
    """Gives the tokenizer of a model, in place, another chat template (None = its own) and arguments for it.

    A template without a system role, which raises or drops the message, gets the system message at the start of the
    first user message.

    Raises:
        UserError: the file cannot be read, the template has no such arguments, or it hangs or fills memory.
    """
    if (built_in := _BUILT_IN.get(template or "")) is not None:
        ids = tokenizer("")["input_ids"]
        begins = tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]
        tokenizer.chat_template = "{{ bos_token }}" * begins + built_in
    elif template is not None:
        what = f"model.chat_template: expected null, {PLAIN}, {QUESTION}, {TOOLS} or a file with a Jinja template"
        tokenizer.chat_template = read_needed(Path(template), what, most=_MOST_TEMPLATE)
    if arguments:
        text = "" if tokenizer.chat_template is None else tokenizer.get_chat_template()
        variables = set(re.findall(r"\w+", text)) - {"messages", "add_generation_prompt"}
        unknown = [name for name in arguments if name not in variables]
        if unknown:
            raise UserError(
                f"model.chat_template_kwargs: expected variables of the chat template of {path}, got "
                f"{', '.join(unknown)}, which {'it does not read' if text else 'has none'}: check the names"
            )
        # A caller's value comes first, as with any variable that a template sets where it is not defined.
        defaults = "".join(
            f"{{% if {name} is not defined %}}{{% set {name} = {json.dumps(value, ensure_ascii=False)} %}}{{% endif %}}"
            for name, value in arguments.items()
        )
        tokenizer.chat_template = defaults + "{{ '' }}" + text
    if tokenizer.chat_template is None:
        return
    text = str(tokenizer.chat_template)
    if text not in _FOLDED:
        for messages in ((_SYSTEM, _USER), (_USER,)):
            try_template(messages, tokenizer)
        # A template that fails without a system message, too, is reported where a prompt is rendered.
        fails = lost_contents((_USER,), tokenizer)
        _FOLDED[text] = not fails and _SYSTEM["content"] in lost_contents((_SYSTEM, _USER), tokenizer)
    if _FOLDED[text]:
        tokenizer.chat_template = _FOLD + tokenizer.get_chat_template()


TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def hidden_tags(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Tags of DeepSeek-R1's format that are special tokens, which a tokenizer leaves out of a text."""
    tokens = [(tag, tokenizer.convert_tokens_to_ids(tag)) for tag in TAGS if tag in tokenizer.get_added_vocab()]
    return [tag for tag, token in tokens if tag not in str(tokenizer.decode([token], skip_special_tokens=True))]


def is_rendered(text: str, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a text is a whole prompt of the chat template already: it begins, asks and ends as a rendered one."""
    key = str(tokenizer.chat_template), tokenizer.bos_token
    if tokenizer.chat_template is not None and key not in _ASKED:
        try_template((_USER,), tokenizer)
        with suppress(Exception):  # a template is a program, which can raise anything
            rendered = tokenizer.apply_chat_template([dict(_USER)], add_generation_prompt=True, tokenize=False)
            _ASKED[key] = str(rendered)
    bos = tokenizer.bos_token or ""
    before, _, after = map(str.strip, _ASKED.get(key, "").removeprefix(bos).partition(_USER["content"]))
    begins = text.lstrip().removeprefix(bos).lstrip().startswith(before[:2])
    return bool(before and after) and begins and before.splitlines()[-1] in text and after in text


def is_rendered_chat(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a prompt is one user's message that has the template in it already."""
    return [message["role"] for message in messages] == ["user"] and is_rendered(messages[0]["content"], tokenizer)


def folds_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the system message stands in the first user message, because the template has no system role."""
    return _FOLD in str(tokenizer.chat_template)


def lost_contents(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The contents of messages that the template drops or rewrites; all where it fails. White space does not count."""
    contents, text = [message["content"] for message in messages], ""
    with suppress(Exception):  # a template is a program, which can raise anything
        text = str(tokenizer.apply_chat_template([*map(dict, messages)], add_generation_prompt=True, tokenize=False))
    return [content for content in contents if content.strip() not in text]


def try_template(
    messages: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Renders in a process of its own, which the kernel ends at a limit: one loop or product can hang or fill memory.

    Raises:
        UserError: the template reached a limit.
    """
    if not hasattr(os, "fork"):
        return
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
            if (memory := Path("/proc/self/statm")).exists():
                held = int(memory.read_text().split()[5]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_DATA, (held + _BYTES, held + _BYTES))
            shown, offered = [*map(dict, messages)], [*map(dict, tools)] or None
            tokenizer.apply_chat_template(shown, tools=offered, add_generation_prompt=True, tokenize=False)
        except MemoryError:
            os._exit(1)
        finally:  # other errors are reported when this process renders
            os._exit(0)
    # Killed where it sleeps, which uses no CPU time.
    until = time.monotonic() + _WALL_SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    if ended[1]:
        raise UserError(
            f"the model's chat template: expected a text within {_SECONDS} s of CPU time and "
            f"{_BYTES >> 20} MiB, got none: the template is damaged or hostile; use another model"
        )
