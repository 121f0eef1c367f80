"""From a problem to the token ids of its prompt."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from grouprl.types import Problem, UserError


def prompt_token_ids(problem: Problem, tokenizer: PreTrainedTokenizerBase, *, longest: int) -> tuple[int, ...]:
    """Token ids of a problem's prompt; messages go through the tokenizer's chat template.

    Args:
        problem: its prompt is text or chat messages.
        tokenizer: the policy's.
        longest: tokens that the prompt may have, so that a completion still fits the context.

    Raises:
        UserError: messages without a chat template, an empty prompt, or one that is too long.
    """
    if isinstance(problem.prompt, str):
        ids = tokenizer(problem.prompt)["input_ids"]
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
