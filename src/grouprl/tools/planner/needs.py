"""The memory that a run will take, before its model is loaded."""

from __future__ import annotations

from dataclasses import replace

from grouprl.config.run import RunConfig
from grouprl.forward.devices import traits_of
from grouprl.models.load import load_tokenizer
from grouprl.rollout.episodes import has_turns, longest_completion
from grouprl.tasks import Task
from grouprl.tools.planner.layouts import RankLayout, memory_of_rank
from grouprl.tools.planner.machine import total_memory
from grouprl.tools.planner.screen import networks_of, step_of
from grouprl.tools.planner.shapes import shape_of
from grouprl.types import UserError

_PROMPTS = 64  # train problems whose prompts are looked at
_GIB = 1 << 30


def memory_of(config: RunConfig, task: Task, ranks: int) -> str | None:
    """A sentence about the memory of each rank, where the model's shape is known.

    Raises:
        UserError: the device is smaller than weights, gradients and moments alone.
    """
    try:
        shape, tokenizer = shape_of(config.model.path), load_tokenizer(config.model.path)
        networks = networks_of(config)
    except UserError:  # another family; or a folder that loading describes better
        return None
    longest = max(len(tokenizer(problem.prompt_text)["input_ids"]) for problem in task.problems("train")[:_PROMPTS])
    all_ranks = step_of(config, max(1, longest))  # an environment may own the prompts
    step = replace(
        all_ranks.of_rank(ranks),
        completion_tokens=longest_completion(config, task),
        episodes=has_turns(config, task),
    )
    plan = memory_of_rank(shape, networks, step, RankLayout(ranks, ranks if config.distributed.shard else 1))
    available = total_memory(step.device)
    # Not the peak: it counts every completion at its longest, and few are.
    least = plan.networks.total + plan.update.gradients + plan.update.critic_gradients
    saving = {
        "model.weights=bfloat16 model.dtype=bfloat16": networks.weights == "float32" and not config.distributed.shard,
        "learner.moments=bfloat16": networks.moments == "float32" and not (config.distributed.shard or networks.paged),
        "model.reference=cpu": plan.networks.reference > 0
        and not (traits_of(step.device).shares_memory or config.distributed.shard),
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
