"""Encodes prompts, and completions that the policy did not sample."""

from __future__ import annotations

import math

from transformers import PreTrainedTokenizerBase

from grouprl.types import Completion, Problem, StopReason, UserError


def prompt_token_ids(problem: Problem, tokenizer: PreTrainedTokenizerBase, *, longest: int) -> tuple[int, ...]:
    """Token ids of a problem's prompt; messages go through the tokenizer's chat template.

    Args:
        problem: its prompt is text or chat messages.
        tokenizer: the policy's tokenizer.
        longest: most tokens of the prompt, so that a completion still fits the context.

    Raises:
        UserError: the tokenizer has no chat template for messages, or the prompt is empty or too long.
    """
    if isinstance(problem.prompt, str):
        ids = _text_ids(problem.prompt, tokenizer)
    else:
        if tokenizer.chat_template is None:
            raise UserError(
                f"problem {problem.id!r}: its prompt is chat messages, and the model's tokenizer has no chat template: "
                "use an instruction-tuned model, or a task whose prompts are plain text"
            )
        ids = tokenizer.apply_chat_template(
            [dict(message) for message in problem.prompt], add_generation_prompt=True, return_dict=False
        )
    if not 1 <= len(ids) <= longest:
        raise UserError(
            f"problem {problem.id!r}: expected a prompt of 1 to {longest} tokens (the model's context less "
            f"rollout.max_tokens), got {len(ids)}: shorten the prompt or lower rollout.max_tokens"
        )
    return tuple(ids)


def _text_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a plain text with the special tokens that the tokenizer puts before it."""
    own: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids: list[int] = tokenizer(text)["input_ids"]
    if ids[-len(own) - 1 :] == [*own, tokenizer.eos_token_id]:
        ids = ids[:-1]  # the tokenizer added it: the policy would write after an end
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids  # the text has one of its own


def authored_completion(
    index: int, text: str, tokenizer: PreTrainedTokenizerBase, stop_reason: StopReason = StopReason.END
) -> Completion:
    """A completion from a text that the policy did not sample; its log-probs are unknown (NaN).

    Args:
        index: its place in the group.
        text: the text without an end token.
        tokenizer: the tokenizer of the trained model.
        stop_reason: END appends the end token.
    """
    end = (tokenizer.eos_token_id,) if stop_reason is StopReason.END else ()
    token_ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], *end)
    unknown = (math.nan,) * len(token_ids)
    return Completion(index, token_ids, unknown, unknown, text, stop_reason, weights_version=0)
