"""Chat templates in the styles of five model families, small, with plain Python that renders the same text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from grouprl.supervised.scratch import new_tokenizer
from tiny import TEXTS

BOS = "<s>"
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Style:
    """A template in Jinja, and the same in Python: of (the system message or "", the turns after it)."""

    template: str
    rendered: Callable[[str, Messages], str]
    has_bos: bool = True


def _qwen(system: str, turns: Messages) -> str:
    """ChatML without BOS; the reasoning of earlier turns goes."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    for turn in turns:
        content = turn["content"].split("</think>")[-1].lstrip("\n") if turn["role"] == "assistant" else turn["content"]
        text += f"<|im_start|>{turn['role']}\n{content}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def _llama(system: str, turns: Messages) -> str:
    """The system turn is always there."""
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    text = BOS + head.format("system") + system.strip() + "<|eot_id|>"
    return (
        text
        + "".join(head.format(t["role"]) + t["content"].strip() + "<|eot_id|>" for t in turns)
        + head.format("assistant")
    )


def _mistral(system: str, turns: Messages) -> str:
    """The system message moves into the last user turn."""
    text = BOS
    for place, turn in enumerate(turns):
        moved = f"{system}\n\n" if system and place == len(turns) - 1 else ""
        text += f"[INST] {moved}{turn['content']}[/INST]" if turn["role"] == "user" else f" {turn['content']}</s>"
    return text


def _gemma(system: str, turns: Messages) -> str:
    """The assistant is called model, and the system message stands before the first user turn."""
    text = BOS
    for place, turn in enumerate(turns):
        role = "model" if turn["role"] == "assistant" else "user"
        before = f"{system}\n\n" if system and place == 0 else ""
        text += f"<start_of_turn>{role}\n{before}{turn['content'].strip()}<end_of_turn>\n"
    return text + "<start_of_turn>model\n"


def _deepseek(system: str, turns: Messages) -> str:
    """The reasoning of earlier turns goes, and the next turn begins inside a <think> tag."""
    text = BOS + system
    for turn in turns:
        if turn["role"] == "user":
            text += "<|User|>" + turn["content"]
        else:
            text += "<|Assistant|>" + turn["content"].split("</think>")[-1] + "<|end_of_sentence|>"
    return text + "<|Assistant|><think>\n"


_SPLIT = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
)
STYLES = {
    "qwen": Style(
        _SPLIT + "{% if system %}{{ '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}{% endif %}"
        "{% for m in turns %}{% set content = m['content'] %}"
        "{% if m['role'] == 'assistant' and '</think>' in content %}"
        "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% elif m['role'] == 'assistant' %}"
        "{% set content = content.lstrip('\\n') %}{% endif %}"
        "{{ '<|im_start|>' + m['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        _qwen,
        has_bos=False,
    ),
    "llama": Style(
        _SPLIT + "{{ bos_token }}{% for m in [{'role': 'system', 'content': system}] + turns %}"
        "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}"
        "{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
        _llama,
    ),
    "mistral": Style(
        _SPLIT + "{{ bos_token }}{% for m in turns %}{% if m['role'] == 'user' %}{{ '[INST] ' }}"
        "{% if system and loop.last %}{{ system + '\\n\\n' }}{% endif %}{{ m['content'] + '[/INST]' }}"
        "{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}",
        _mistral,
    ),
    "gemma": Style(
        _SPLIT + "{{ bos_token }}{% for m in turns %}"
        "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else 'user') + '\\n' }}"
        "{% if system and loop.first %}{{ system + '\\n\\n' }}{% endif %}"
        "{{ m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
        _gemma,
    ),
    "deepseek": Style(
        _SPLIT + "{{ bos_token + system }}{% for m in turns %}{% if m['role'] == 'user' %}"
        "{{ '<|User|>' + m['content'] }}{% else %}"
        "{{ '<|Assistant|>' + m['content'].split('</think>')[-1] + '<|end_of_sentence|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}",
        _deepseek,
    ),
}


def styled_tokenizer(style: str = "llama", *, adds: str = "$A") -> PreTrainedTokenizerBase:
    """The tiny tokenizer with a BOS token and a family's template.

    `adds` is what its post-processor makes of a plain text: "<s> $A" puts BOS before it, "$A <|end|>" the end after it.
    """
    tokenizer = new_tokenizer(TEXTS * 3, 320)
    tokenizer.add_special_tokens({"bos_token": BOS})
    tokenizer.chat_template = STYLES[style].template
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (BOS, "<|end|>")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=adds, special_tokens=special)
    return tokenizer
