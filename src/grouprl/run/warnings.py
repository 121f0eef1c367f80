"""What a run says before its first step about a slow or doubtful setting."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.config.run import RunConfig
from grouprl.models.attention import is_packed
from grouprl.models.kernels.build import setting, why_no_library
from grouprl.models.precision import is_emulated
from grouprl.run.assemble import RunParts


def warnings_of(parts: RunParts, config: RunConfig) -> Iterator[str]:
    """Sentences for the terminal."""
    tokenizer, problems = parts.step_parts.tokenizer, parts.step_parts.task.problems("train")
    if tokenizer.chat_template is not None and isinstance(problems[0].prompt, str):
        yield (
            "the model has a chat template, but plain-text prompts do not use it. Write prompts as messages, "
            '[{"role": "user", "content": ...}], or set task.arguments.messages=true.'
        )
    policy = parts.step_parts.learner.policy
    if not is_packed(policy):
        yield (
            f"the layers of {type(policy).__name__} run as they are, each completion as a row of its own: slower and "
            "with more memory than packed tokens (docs/models.md)."
        )
    if is_emulated(parts.step_parts.learner.device, config.model.dtype):
        yield (
            "this processor emulates bfloat16 matrix products in software, several times slower than float32 "
            "products. Set model.dtype=float32."
        )
    if parts.step_parts.learner.device.type == "cpu" and setting() != "off" and (reason := why_no_library()):
        yield f"without the compiled kernels this run takes 1.3 to 3 times as long. The reason: {reason}."
