"""The task `calculator`: word problems with a tool that computes, so that the policy learns when to call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from grouprl.environments.base import exchange
from grouprl.leaves import leaf
from grouprl.tasks.answers import boxed, gold_answer
from grouprl.tasks.arithmetic import UnreadableError, evaluate
from grouprl.types import Problem

WordProblems: Any = leaf("task.word_problems")


def calculate(expression: str) -> str:
    """Computes an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / and brackets.
    """
    try:
        value = evaluate(expression)
    except UnreadableError as error:
        return f"error: {error}"
    return str(value) if isinstance(value, Fraction | int) else f"{value:g}"


@dataclass(frozen=True)
class Calculator(WordProblems):  # type: ignore[misc]  # of another leaf
    """Word problems of `word_problems` with the tool `calculate`.

    `difficulty` is the largest number of operations, 1 to 4. The answer stands in a box, as there; how often the policy
    calls the tool is the metric `episodes/calls`.
    """

    name = "calculator"

    @property
    def tools(self) -> Sequence[Any]:
        """What the policy may call."""
        return (calculate,)

    def worked(self, problem: Problem) -> Sequence[Mapping[str, Any]]:
        """One call with the whole chain of operations, its result, and the answer in a box."""
        chain = leaf("operations")(problem)
        expression = str(chain[0].left)
        for step in chain:
            left = f"({expression})" if " " in expression else expression
            expression = f"{left} {step.symbol} {step.right}"
        said = {"role": "assistant", "content": boxed(gold_answer(problem.columns["answer"]))}
        return (*exchange("calculate", {"expression": expression}, calculate(expression)), said)
