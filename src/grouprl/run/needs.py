"""What a run says before its first step: the memory and tokens that it takes, and what is slow or doubtful about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from grouprl.config.run import RunConfig
from grouprl.forward.attention import is_packed
from grouprl.forward.compiled import kernels
from grouprl.forward.precision import is_emulated
from grouprl.leaves import find_leaf
from grouprl.models.load import context_length
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.templates import TAGS, folds_system, is_rendered, is_rendered_chat, lost_contents
from grouprl.rewards.configured import in_memory
from grouprl.rollout.episodes import longest_completion
from grouprl.run.assemble import RunParts
from grouprl.tasks import Task
from grouprl.types import counted

_PROMPTS = 64  # train problems whose messages are compared with their rendering


def resource_notes(config: RunConfig, task: Task, ranks: int) -> Iterator[str]:
    """Sentences about memory, where the model's shape is known, about what is held out, and about evaluations.

    Raises:
        UserError: the device is smaller than weights, gradients and moments alone.
    """
    memory_of = find_leaf("memory")
    if memory_of is not None and (memory := memory_of(config, task, ranks)) is not None:
        yield memory
    evaluation, tokens = config.evaluation, longest_completion(config, task)
    trained, held_out = task.problems("train"), task.problems(evaluation.split)
    problems = min(evaluation.problems, len(held_out))
    said = f"the evaluation uses {problems:,} of these" if problems else "none is held out"
    if problems and trained[0].id != held_out[0].id:
        split = held_out[0].id.rpartition("/")[0]
        said = f"{len(held_out):,} others are held out ({split}), of which the evaluation uses {problems:,}"
    yield f"Problems: {len(trained):,} to train on; {said}."
    each = problems * (1 + evaluation.samples) * tokens
    count = 2 + ((config.steps - 1) // evaluation.every if evaluation.every else 0)
    most = config.steps * config.rollout.problems_per_step * config.rollout.group_size * tokens
    yield (
        f"Evaluations: {count} of {counted(problems, 'problem')} x (1 greedy + {evaluation.samples} sampled) x at most "
        f"{tokens} tokens, {count * each:,} in all; training: at most {most:,}."
        if problems
        else "Evaluations: none (evaluation.problems=0, or the task has no held-out problems)."
    )
    if problems and any((reward.function or reward.name) == "judge_model" for reward in config.rewards):
        judged = f"{counted(count * problems * (1 + evaluation.samples), 'request')} each"
        yield (
            f"Judge models score held-out completions as well: {judged} (evaluation.judge=false: none)."
            if evaluation.judge
            else f"Judge models do not score held-out completions (evaluation.judge=true: {judged})."
        )


def episode_length(parts: RunParts, config: RunConfig) -> str:
    """How long an episode may be, where the configuration leaves that to the model's context."""
    step, context = parts.step_parts, context_length(parts.step_parts.learner.policy)
    first = step.task.problems("train")[0]
    first = first if step.opened is None else step.opened(first)
    prompt = len(prompt_token_ids(first, step.tokenizer, longest=step.longest_prompt))
    longest = min(config.environment.longest(config.rollout.max_tokens), context - prompt)
    return (
        f"Episodes: at most {longest:,} tokens after the first prompt of {prompt:,} (environment.max_tokens; the "
        f"model's context is {context:,})."
    )


def warnings_of(parts: RunParts, config: RunConfig) -> Iterator[str]:
    """Sentences for the terminal."""
    tokenizer, problems = parts.step_parts.tokenizer, parts.step_parts.task.problems("train")
    first = problems[0].prompt
    if tokenizer.chat_template is not None and isinstance(first, str) and not is_rendered(first, tokenizer):
        yield (
            "the model has a chat template, but plain-text prompts do not use it. Write prompts as messages, "
            '[{"role": "user", "content": ...}], or set task.arguments.messages=true.'
        )
    chats = {problem.id: problem.prompt for problem in problems[:_PROMPTS] if not isinstance(problem.prompt, str)}
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
            break
    special = {entry.content for entry in tokenizer.added_tokens_decoder.values() if entry.special}
    written = re.compile("|".join(map(re.escape, special.difference(TAGS))) or "(?!)")
    rows, marks = set[str](), dict[str, str]()
    for row in chain(in_memory(problems), in_memory(parts.step_parts.task.problems(config.evaluation.split))):
        if not isinstance(row.prompt, str):
            rows.add(row.id)
            if (mark := written.search(row.prompt_text)) and not is_rendered_chat(row.prompt, tokenizer):
                marks[row.id] = f"{mark[0]} in {row.where}"
    if marks:
        yield (
            f"data rows with the text of a control token in their messages: {len(marks):,} of {len(rows):,}, the first "
            f"{next(iter(marks.values()))}. The tokenizer reads it as that token, which may end a message: remove it "
            "where it is meant as text."
        )
    updates, warmup = config.steps * config.algorithm.updates.count, config.learner.warmup_steps
    if warmup > updates:
        yield (
            f"learner.warmup_steps={warmup} is more than the {counted(updates, 'update')} of this run: its learning "
            f"rate ends at {config.learner.learning_rate * updates / warmup:.3g}, below learner.learning_rate="
            f"{config.learner.learning_rate:g}."
        )
    if config.distributed.shard and parts.step_parts.learner.ranks.world == 1:
        yield "distributed.shard=true has no effect in one process: start the run with torchrun, or remove it."
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
    compiled = kernels()
    reason = "the folder grouprl/kernels is missing" if compiled is None else compiled.why_slow()
    if parts.step_parts.learner.device.type == "cpu" and reason:
        yield f"without the compiled kernels this run takes 1.3 to 3 times as long. The reason: {reason}."
