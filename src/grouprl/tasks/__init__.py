"""A task gives problems and names the rewards that score their completions. `TASKS` holds the built-in tasks by name.

In: a name, options, data files. Out: problems. It never samples or scores.
"""

from __future__ import annotations

from grouprl.tasks.base import Split, Task
from grouprl.tasks.named import TASKS, load_task
from grouprl.tasks.rows import ListTask, task_from_list

__all__ = ["TASKS", "ListTask", "Split", "Task", "load_task", "task_from_list"]
