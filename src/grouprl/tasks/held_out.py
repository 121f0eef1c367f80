"""Which problems a run trains on and evaluates: those of another task, or the rows of a task that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grouprl.tasks.base import Split, Task, derived
from grouprl.tasks.files import column, read_rows
from grouprl.tasks.mixture import Mixture, MixturePart
from grouprl.types import Problem, UserError, counted


def evaluated_on(task: Task, held_out: Mapping[Split, Sequence[Problem]]) -> Task:
    """Returns the task with other held-out problems; it trains on all of its rows.

    Raises:
        UserError: a held-out prompt is one of the train split.
    """
    task = trained_on_the_rest(task, None)
    prompts = {problem.prompt_text for part in held_out.values() for problem in part}
    for problem in task.problems("train"):
        if problem.prompt_text and problem.prompt_text in prompts:  # an empty one is an environment's
            raise UserError(
                f"eval_task: expected prompts that are not trained on, got {problem.prompt_text[:60]!r} in both: "
                "remove it from one, or leave eval_task out and set evaluation.split=train"
            )
    return _with(task, held_out)


def trained_on_the_rest(task: Task, evaluated: Split | None) -> Task:
    """Returns the task that trains on every row but those of the split that is evaluated.

    Tasks of rows cut the held-out splits that their data lacks from train; a run evaluates only one of them, and none
    where its evaluation has problems of its own (None). Where the data has another held-out split than the one asked
    for, that one is evaluated. Other tasks are returned as they are.
    """
    if isinstance(task, Mixture):
        parts = task.parts.items()
        trained = {name: MixturePart(trained_on_the_rest(part.task, evaluated), part.ratio) for name, part in parts}
        return Mixture(trained)
    splits = getattr(task, "given", None)
    if splits is None:
        return task
    replaced: dict[Split, Sequence[Problem]] = {}
    if evaluated == "test" and evaluated not in splits and "validation" in splits:
        replaced["test"] = task.problems("validation")
    present = {*splits, evaluated} - replaced.keys()
    used: list[Problem] = [problem for split in present if split for problem in task.problems(split)]
    taken = {problem.prompt_text for problem in used}
    cut: list[Split] = [split for split in ("validation", "test") if split not in present]
    rest = [problem for split in cut for problem in task.problems(split) if problem.prompt_text not in taken]
    return _with(task, replaced | {"train": [*task.problems("train"), *rest]}) if replaced or rest else task


def chosen_in(task: Task, file: str | None) -> Task:
    """Returns the task that trains on the problems of a file of `grouprl check-data --write` alone; None = on all.

    Raises:
        UserError: the file cannot be read, or names a prompt that is none of the train problems; the task is a mixture.
    """
    if file is None:
        return task
    if isinstance(task, Mixture):
        raise UserError("rollout.curriculum.chosen: expected one task, got a mixture: choose the problems of a task")
    prompts = {column(row, "prompt"): row[0] for row in read_rows(file)}
    chosen = [problem for problem in task.problems("train") if problem.prompt_text in prompts]
    missing = prompts.keys() - {problem.prompt_text for problem in chosen}
    if missing:
        example = min(missing, key=list(prompts).index)
        raise UserError(
            f"{prompts[example]}: expected the prompt of a train problem of {task.name}, got {example[:60]!r} and "
            f"{counted(len(missing) - 1, 'other')}: give the settings of the task that check-data had, or write the "
            "file again"
        )
    return _with(task, {"train": chosen})


def _with(task: Task, replaced: Mapping[Split, Sequence[Problem]]) -> Task:
    return derived(task, lambda split: replaced[split] if split in replaced else task.problems(split), cut=False)
