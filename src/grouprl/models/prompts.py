"""Encodes prompts, and completions that the policy did not sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.models.plain_text import encoded_pieces, text_pieces
from grouprl.models.templates import hidden_tags, is_rendered, is_rendered_chat, try_template
from grouprl.types import Completion, Problem, StopReason, UserError

_TRIED: set[str] = set()  # templates that stayed within the limits


def prompt_token_ids(problem: Problem, tokenizer: PreTrainedTokenizerBase, *, longest: int) -> tuple[int, ...]:
    """Token ids of a problem's prompt; messages go through the tokenizer's chat template.

    Args:
        problem: its prompt is text or chat messages. A user's message that has the template in it already is text.
        tokenizer: the policy's tokenizer.
        longest: most tokens of the prompt, so that a completion still fits the context.

    Raises:
        UserError: the tokenizer has no chat template for messages, the prompt is empty or too long, or it is plain text
            where there are tools.
    """
    if isinstance(problem.prompt, str) or (not problem.plain_from and is_rendered_chat(problem.prompt, tokenizer)):
        if problem.tools and not is_rendered(problem.prompt_text, tokenizer):
            raise UserError(
                f"{problem.where}: expected chat messages, for tools stand in a chat template, got plain text"
            )
        ids = _text_ids(problem.prompt_text, tokenizer)
    else:
        if tokenizer.chat_template is None:
            raise UserError(
                f"{problem.where}: its prompt is chat messages, and the model's tokenizer has no chat template: "
                "set model.chat_template=plain, or use an instruction-tuned model or a task with plain-text prompts "
                "(with task.examples: model.chat_template=question)"
            )
        messages = [dict(message) for message in problem.prompt]
        ids = _rendered(problem.id, messages, tokenizer, problem.tools, plain_from=problem.plain_from)
    if not 1 <= len(ids) <= longest:
        raise UserError(
            f"{problem.where}: expected a prompt of 1 to {longest} tokens (the model's context less "
            f"rollout.max_tokens), got {len(ids)}: shorten the prompt or lower rollout.max_tokens or task.examples"
        )
    return tuple(ids)


def conversation_token_ids(
    prompt: str | Sequence[Mapping[str, Any]],
    completion: str | Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[int, ...]:
    """Token ids of a prompt with its completion, as a tokenizer that sampled neither encodes them.

    Messages go through the chat template; plain text follows plain text, without an end token.

    Raises:
        UserError: the tokenizer has no chat template for messages, or it cannot render them.
    """
    if isinstance(prompt, str) and isinstance(completion, str):
        return tuple(_text_ids(prompt + completion, tokenizer))
    messages = [dict(message) for part in (prompt, completion) if not isinstance(part, str) for message in part]
    if tokenizer.chat_template is None:
        raise UserError(
            "reward model: its tokenizer has no chat template, and the prompts are chat messages: "
            "use a reward model with a template, or a task with plain-text prompts"
        )
    return tuple(_rendered("of the reward model", messages, tokenizer, answer_follows=False))


def _rendered(
    problem_id: str,
    messages: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    answer_follows: bool = True,
    plain_from: Mapping[int, int] = MappingProxyType({}),
) -> list[int]:
    if (template := str(tokenizer.chat_template)) not in _TRIED:
        try_template(messages, tokenizer, tools)
        _TRIED.add(template)
    # A last message of the assistant is the beginning of the completion, as in TRL's data: the policy continues it.
    continues = answer_follows and messages[-1]["role"] == "assistant"
    begins = answer_follows and not continues
    options = {"tools": [dict(tool) for tool in tools] or None, "add_generation_prompt": begins}

    def written(texts: Sequence[str]) -> str:
        filled = [*messages]
        for (index, start), text in zip(plain_from.items(), texts, strict=True):
            filled[index] = {**messages[index], "content": messages[index]["content"][:start] + text}
        return str(tokenizer.apply_chat_template(filled, tokenize=False, continue_final_message=continues, **options))

    try:
        if plain_from and tokenizer.is_fast:
            texts = [messages[index]["content"][start:] for index, start in plain_from.items()]
            return _one_bos(list(encoded_pieces(tokenizer, text_pieces(written, texts))), tokenizer)
        ids: list[int] = tokenizer.apply_chat_template(
            messages, continue_final_message=continues, return_dict=False, **options
        )
    except Exception as error:  # a template is a program, which can raise anything
        if continues and "continue_final_message" in str(error):
            raise UserError(
                f"problem {problem_id!r}: expected a chat template that keeps the assistant's last message, which the "
                "completion continues, got one that changes it: use another template (model.chat_template), or end "
                "the prompt with the user's message"
            ) from None
        raise UserError(
            f"problem {problem_id!r}: expected a chat template that renders its messages, got {type(error).__name__}: "
            f"{error}: use a template that has these roles, or another model"
        ) from error
    return _one_bos(ids, tokenizer)


def _text_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a plain text with the special tokens that the tokenizer puts before it."""
    text_ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids: list[int] = tokenizer(text)["input_ids"]
    if ids[-len(text_ids) - 1 :] == [*text_ids, tokenizer.eos_token_id]:
        ids = ids[:-1]  # the tokenizer added it: the policy would write after an end
    return _one_bos(ids, tokenizer)


def _one_bos(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids without a second BOS: the text or the template may write one where the tokenizer adds its own."""
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def completion_texts(rows: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The texts of completions: without special tokens, but with the tags of task.format=think where they are such."""
    if not (shown_tags := hidden_tags(tokenizer)):
        return list(tokenizer.batch_decode(list(rows), skip_special_tokens=True))
    added = (token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special)  # some have no role
    left_out = {*tokenizer.all_special_ids, *added} - set(tokenizer.convert_tokens_to_ids(shown_tags))
    return list(tokenizer.batch_decode([[token for token in ids if token not in left_out] for ids in rows]))


def authored_completion(
    index: int, text: str, tokenizer: PreTrainedTokenizerBase, stop_reason: StopReason = StopReason.END
) -> Completion:
    """A completion from a text that the policy did not sample; its log-probs are unknown (NaN).

    Args:
        index: its index in the group.
        text: the text without an end token.
        tokenizer: the tokenizer of the trained model.
        stop_reason: END appends the end token.
    """
    end = (tokenizer.eos_token_id,) if stop_reason is StopReason.END else ()
    token_ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], *end)
    unknown = (math.nan,) * len(token_ids)
    return Completion(index, token_ids, unknown, unknown, text, stop_reason, weights_version=0)
