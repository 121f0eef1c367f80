"""A task whose held-out problems come from somewhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.tasks.base import Split, Task
from grouprl.types import Problem, UserError


@dataclass(frozen=True)
class HeldOutTask:
    """One task's problems to train on, with other problems to evaluate on; made by `evaluated_on`."""

    task: Task
    held_out: Mapping[Split, Sequence[Problem]]
    name: str
    verifier: str | None
    default_rewards: Mapping[str, float]
    default_step_rewards: Mapping[str, float]
    own_rewards: Mapping[str, Callable[..., Any]]
    gold: Callable[[Problem], str | None]
    traits: Callable[[str], Mapping[str, bool]]
    verifier_given: bool

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split."""
        return self.held_out[split] if split in self.held_out else self.task.problems(split)


def evaluated_on(task: Task, held_out: Mapping[Split, Sequence[Problem]]) -> Task:
    """Returns the task with other held-out problems.

    Raises:
        UserError: a held-out prompt is one of the train split.
    """
    prompts = {problem.prompt_text for part in held_out.values() for problem in part}
    for problem in task.problems("train"):
        if problem.prompt_text in prompts:
            raise UserError(
                f"eval_task: expected prompts that are not trained on, got {problem.prompt_text[:60]!r} in both: "
                "remove it from one, or leave eval_task out and set evaluation.split=train"
            )
    return HeldOutTask(
        task,
        held_out,
        name=task.name,
        verifier=task.verifier,
        default_rewards=task.default_rewards,
        default_step_rewards=task.default_step_rewards,
        own_rewards=task.own_rewards,
        gold=task.gold,
        traits=task.traits,
        verifier_given=getattr(task, "verifier_given", not type(task).__module__.startswith("grouprl.")),
    )
