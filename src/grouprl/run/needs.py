"""What a run will take, before its model is loaded: memory by the planner, and the tokens of its evaluations."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.config.run import RunConfig
from grouprl.leaves import find_leaf
from grouprl.tasks import Task


def needs_of(config: RunConfig, task: Task, ranks: int) -> Iterator[str]:
    """Sentences about memory, where the model's shape is known, about what is held out, and about evaluations.

    Raises:
        UserError: the device is smaller than weights, gradients and moments alone.
    """
    memory_of = find_leaf("memory")
    if memory_of is not None and (memory := memory_of(config, task, ranks)) is not None:
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
