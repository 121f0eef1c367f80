"""Tasks: problems to train on, and how their completions are judged. `TASKS` holds those that a name can load."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from grouprl.tasks.base import Split, Task
from grouprl.tasks.from_list import ListTask, task_from_list
from grouprl.tasks.gsm8k import Gsm8k
from grouprl.tasks.names import unknown_name
from grouprl.tasks.word_problems import WordProblems
from grouprl.types import UserError

__all__ = ["TASKS", "Gsm8k", "ListTask", "Split", "Task", "WordProblems", "load_task", "task_from_list"]

TASKS: dict[str, type[WordProblems] | type[Gsm8k]] = {"gsm8k": Gsm8k, "word_problems": WordProblems}


def load_task(
    name: str,
    *,
    path: str | None = None,
    difficulty: int | None = None,
    train_problems: int | None = None,
    eval_problems: int | None = None,
    seed: int = 0,
    system_prompt: str | None = None,
) -> Task:
    """The task of that name. None leaves an option to the task; a task without random problems has no use for `seed`.

    Raises UserError for an unknown name, for an option that the task does not have, and for a value it refuses.
    """
    if name not in TASKS:
        raise unknown_name("task.name", name, TASKS)
    named = {
        "path": path,
        "difficulty": difficulty,
        "train_problems": train_problems,
        "eval_problems": eval_problems,
        "system_prompt": system_prompt,
    }
    options: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    known = {field.name for field in fields(TASKS[name])}
    for option in options.keys() - known:
        raise UserError(
            f"task.{option}: the task {name} has no such option, only {', '.join(sorted(known))}: leave it out"
        )
    return TASKS[name](**options | ({"seed": seed} if "seed" in known else {}))
