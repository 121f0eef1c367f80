"""What a run says before its first step about a slow or doubtful setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from grouprl.config.run import RunConfig
from grouprl.models.attention import is_packed
from grouprl.models.compiled import kernels
from grouprl.models.precision import is_emulated
from grouprl.models.templates import folds_system, is_rendered, is_rendered_chat, lost_contents
from grouprl.run.assemble import RunParts
from grouprl.types import Problem

_PROMPTS = 64  # train problems whose messages are compared with their rendering


def warnings_of(parts: RunParts, config: RunConfig) -> Iterator[str]:
    """Sentences for the terminal."""
    tokenizer, problems = parts.step_parts.tokenizer, parts.step_parts.task.problems("train")
    first = problems[0].prompt
    if tokenizer.chat_template is not None and isinstance(first, str) and not is_rendered(first, tokenizer):
        yield (
            "the model has a chat template, but plain-text prompts do not use it. Write prompts as messages, "
            '[{"role": "user", "content": ...}], or set task.arguments.messages=true.'
        )
    yield from _about_messages(problems[:_PROMPTS], tokenizer)
    if doubt := getattr(parts.step_parts.engine, "doubt", ""):
        yield doubt
    policy = parts.step_parts.learner.policy
    if not is_packed(policy):
        yield (
            f"{type(policy).__name__} runs in its own layers, with one row per completion: this is slower and takes "
            "more memory than packed tokens (docs/models.md)."
        )
    if is_emulated(parts.step_parts.learner.device, config.model.dtype):
        yield (
            "this processor emulates bfloat16 matrix products in software, several times slower than float32 "
            "products. Set model.dtype=float32."
        )
    if parts.step_parts.learner.device.type == "cpu" and (reason := _why_slow()):
        yield f"without the compiled kernels this run takes 1.3 to 3 times as long. The reason: {reason}."


def _about_messages(problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    chats = {problem.id: problem.prompt for problem in problems if not isinstance(problem.prompt, str)}
    if any(is_rendered_chat(chat, tokenizer) for chat in chats.values()):
        yield "prompts have the chat template in them already: they are used as they are, not rendered once more."
    if folds_system(tokenizer) and any(message["role"] == "system" for chat in chats.values() for message in chat):
        yield (
            "the model's chat template has no system role: GroupRL puts the system message at the start of the first "
            "user message (docs/models.md)."
        )
    for name, chat in chats.items():
        if lost := lost_contents(chat, tokenizer):
            yield (
                f"the model's chat template drops or rewrites messages: the prompt of problem {name!r} lacks "
                f"{lost[0]!r:.60}, so the policy does not see it. Set model.chat_template, or change the prompts."
            )
            return


def _why_slow() -> str | None:
    compiled = kernels()
    return "the folder grouprl/kernels is missing" if compiled is None else compiled.why_slow()
