r"""Mathematics in the form of MATH (Hendrycks et al. 2021, arXiv:2103.03874): `problem`, and `solution` with a box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grouprl.tasks.answers import BoxedAnswers, boxed, final_text, last_boxed
from grouprl.tasks.files import Row, check_answer, column
from grouprl.tasks.sources import FileProblems, PromptRow
from grouprl.types import Problem, UserError


@dataclass(frozen=True)
class MathProblems(FileProblems, BoxedAnswers):
    r"""The task `math`.

    `path` is a data file, a folder with train and test, or `hub:owner/name` (see `tasks.sources`). A row has a
    `problem`, and a `solution` whose last box is the answer, or an `answer`, or both; all other columns are kept.
    `verifier` is one of these: `math_verify`, which compares the meaning of answers and needs the extra `math`;
    `correct_answer`, which compares numbers by value and other answers as text; the name of another reward of the run;
    or `FILE.py:FUNCTION`.
    """

    path: str | None = None
    verifier: str = "math_verify"
    name = "math"
    example_row = {  # noqa: RUF012  declared by FileProblems
        "problem": "What is the sum of all values of $x$ that satisfy $x^2 - \\frac{7}{2}x + 3 = 0$?",
        "solution": "The factors are $(x - 2)(x - \\frac{3}{2})$, so the values are $2$ and $\\frac{3}{2}$, and their "
        "sum is $\\boxed{\\frac{7}{2}}$.",
        "level": "Level 3",
        "type": "Algebra",
    }

    def source(self) -> str:
        """`path`."""
        if self.path is None:
            raise UserError(
                "task.path: expected a file or folder with problems, got none: write task.path=FILE.jsonl (rows with "
                "problem and solution), or task.path=hub:OWNER/NAME to load a data set from the Hugging Face hub"
            )
        return self.path

    def read(self, row: Row) -> PromptRow:
        """The problem, and all columns with the answer."""
        where, columns = row
        stated: Any = columns.get("answer")
        if stated is not None:
            check_answer(row)
        answer = last_boxed(column(row, "solution")) if stated is None else str(stated)
        if answer is None or not answer.strip():
            raise UserError(
                f"{where}: expected a solution with its answer in \\boxed{{}}, got none: add it, or an answer"
            )
        return column(row, "problem"), {**columns, "answer": answer.strip()}

    def gold(self, problem: Problem) -> str | None:
        """The solution where its box is the answer, else the answer in a box."""
        solution, answer = problem.columns.get("solution"), problem.columns["answer"]
        return solution if solution and final_text(solution) == answer else boxed(answer)
