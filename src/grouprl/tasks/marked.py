"""What tasks with solutions in GSM8K's form share: how a completion is judged, and what is rewarded."""

from __future__ import annotations

from collections.abc import Mapping

from grouprl.tasks.answers import boxed_equals, is_worked
from grouprl.types import Problem


class MarkedSolutions:
    """The judging half of a `Task` whose column `answer` marks its steps (`<<2+3=5>>`) and ends in `#### 5`."""

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """0.5 for a boxed answer, 1.0 for the right one."""
        return {"boxed_format": 0.5, "correct_answer": 1.0}

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """1.0 for each worked equation that belongs to the solution."""
        return {"equation_steps": 1.0}

    def correct(self, problem: Problem, text: str) -> bool:
        """Whether the last box holds the gold answer, compared by value."""
        return boxed_equals(text, problem.columns["answer"])

    def traits(self, text: str) -> Mapping[str, bool]:
        """`worked`: an equation stands before the answer."""
        return {"worked": is_worked(text)}
