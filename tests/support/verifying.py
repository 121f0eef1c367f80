"""What a task's own verifier says of a completion, called as a run calls it."""

from __future__ import annotations

from typing import Any

from grouprl.rewards.resolve import built_in
from grouprl.tasks.base import Task
from grouprl.types import Problem


def verdict(task: Task, problem: Problem, text: str) -> float | None:
    assert task.verifier is not None
    reward: Any = built_in(task.verifier, own=task.own_rewards).function
    completion = text if isinstance(problem.prompt, str) else [{"role": "assistant", "content": text}]
    columns = {name: [value] for name, value in problem.columns.items()}
    values = reward(prompts=[problem.prompt], completions=[completion], completion_ids=[[]], **columns)
    assert len(values) == 1
    value: float | None = values[0]
    return value
