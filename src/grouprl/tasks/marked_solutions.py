"""The rewards and gold completions of tasks whose solutions are in GSM8K's form."""

from __future__ import annotations

import re
from collections.abc import Mapping

from grouprl.tasks.answers import gold_answer
from grouprl.tasks.boxed_answers import BoxedAnswers, boxed
from grouprl.types import Problem

_MARK = re.compile(r"<<[^<>]*>>")


class MarkedSolutions(BoxedAnswers):
    """The rewards of a `Task` whose column `answer` marks its reasoning steps (`<<2+3=5>>`) and ends in `#### 5`."""

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """1.0 for each worked equation that belongs to the solution."""
        return {"equation_steps": 1.0}

    def gold(self, problem: Problem) -> str | None:
        """The solution without its marks, with its answer in a box."""
        solution = problem.columns["answer"]
        steps = _MARK.sub("", solution.rpartition("####")[0]).strip()
        return f"{steps}\n{boxed(gold_answer(solution))}".strip()
