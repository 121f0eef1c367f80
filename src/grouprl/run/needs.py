"""What a run will take, before its model is loaded: memory by the planner, and the tokens of its evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grouprl.config.run import RunConfig
from grouprl.models.load import load_tokenizer
from grouprl.tasks import Task
from grouprl.tools.planner.layouts import Layout, memory_of_rank
from grouprl.tools.planner.machine import total_memory
from grouprl.tools.planner.screen import networks_of, step_of
from grouprl.tools.planner.shapes import shape_of
from grouprl.types import UserError

_PROMPTS = 64  # train problems whose prompts are looked at
_GIB = 1 << 30


def needs_of(config: RunConfig, task: Task, ranks: int) -> Iterator[str]:
    """Sentences about memory, where the model's shape is known, about what is held out, and about evaluations.

    Raises:
        UserError: the device is smaller than weights, gradients and moments alone.
    """
    if (memory := _memory(config, task, ranks)) is not None:
        yield memory
    evaluation, tokens = config.evaluation, config.rollout.max_tokens
    trained, held_out = task.problems("train"), task.problems(evaluation.split)
    problems = min(evaluation.problems, len(held_out))
    said = f"the evaluation uses {problems:,} of these" if problems else "none is held out"
    if problems and trained[0].prompt_text != held_out[0].prompt_text:
        place = held_out[0].id.rpartition("/")[0]
        said = f"{len(held_out):,} others are held out ({place}), of which the evaluation uses {problems:,}"
    yield f"Problems: {len(trained):,} to train on; {said}."
    each = problems * (1 + evaluation.samples) * tokens
    count = 2 + ((config.steps - 1) // evaluation.every if evaluation.every else 0)
    most = config.steps * config.rollout.problems_per_step * config.rollout.group_size * tokens
    yield (
        f"Evaluations: {count} of {problems} problems x (1 greedy + {evaluation.samples} sampled) x at most {tokens} "
        f"tokens, {count * each:,} in all; training: at most {most:,}."
        if problems
        else "Evaluations: none (evaluation.problems=0, or the task has no held-out problems)."
    )
    if problems and any((reward.function or reward.name) == "judge_model" for reward in config.rewards):
        asked = count * problems * (1 + evaluation.samples)
        yield (
            f"Judge models score held-out completions as well: {asked:,} requests each (evaluation.judge=false: none)."
            if evaluation.judge
            else f"Judge models do not score held-out completions (evaluation.judge=true: {asked:,} requests each)."
        )


def _memory(config: RunConfig, task: Task, ranks: int) -> str | None:
    try:
        shape, tokenizer = shape_of(config.model.path), load_tokenizer(config.model.path)
    except UserError:  # another family; or a folder that loading describes better
        return None
    longest = max(len(tokenizer(problem.prompt_text)["input_ids"]) for problem in task.problems("train")[:_PROMPTS])
    whole, networks = step_of(config, longest), networks_of(config)
    step = replace(whole, problems=-(-whole.problems // ranks))
    plan = memory_of_rank(shape, networks, step, Layout(ranks, ranks if config.distributed.shard else 1))
    available = total_memory(step.device)
    # Not the peak: it counts every completion at its longest, and few are.
    least = plan.networks.total + plan.update.gradients + plan.update.critic_gradients
    saving = {
        "model.weights=bfloat16 model.dtype=bfloat16": networks.weights == "float32" and not config.distributed.shard,
        "learner.moments=bfloat16": networks.moments == "float32" and not (config.distributed.shard or networks.paged),
        "model.reference=cpu": plan.networks.reference > 0 and step.device == "cuda" and not config.distributed.shard,
        "model.lora={}": networks.lora_rank is None,
        "model.weights=nf4": networks.lora_rank is not None and networks.weights == "bfloat16",
    }
    if least > available:
        raise UserError(
            f"model.path: expected weights, gradients and moments that fit in the {available / _GIB:,.1f} GiB of this "
            f"{step.device}, got {least / _GIB:,.1f} GiB for {shape.name}: set "
            f"{', '.join(name for name, helps in saving.items() if helps) or 'a smaller model'} (docs/models.md)"
        )
    doubt = "" if plan.peak <= available else "; these do not fit: lower rollout.max_tokens or rollout.max_rows"
    return (
        f"Memory: {least / _GIB:,.2f} GiB of weights, gradients and moments, at most {plan.peak / _GIB:,.2f} GiB with "
        f"every completion at its longest, of {available / _GIB:,.1f} GiB on this {step.device}{doubt}."
    )
