r"""GSM8K (Cobbe et al. 2021, arXiv:2110.14168) and files in its form: `question`, and `answer` ending in `#### 7`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grouprl.tasks.answers import EQUATION_STEPS, BoxedAnswers, boxed, gold_answer
from grouprl.tasks.base import check_setting
from grouprl.tasks.files import Row, column
from grouprl.tasks.sources import FileProblems, PromptRow
from grouprl.types import Problem, UserError

_MARK = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True)
class Gsm8k(FileProblems, BoxedAnswers):
    """The task `gsm8k`.

    `path` is a data file, a folder with train and test (see `tasks.sources`), or None for the data set openai/gsm8k on
    the Hugging Face hub. `most_steps` leaves out the problems whose solution marks more calculations (`<<2+3=5>>`).
    """

    path: str | None = None
    most_steps: int | None = None
    name = "gsm8k"
    default_path = "hub:openai/gsm8k:main"
    default_step_rewards = EQUATION_STEPS
    example_row = {  # noqa: RUF012  declared by FileProblems
        "question": "Ben has 4 bags of 6 pens, and gives 5 pens to Anna. How many pens does Ben have now?",
        "answer": "Ben has 4 * 6 = <<4*6=24>>24 pens.\nThen he has 24 - 5 = <<24-5=19>>19 pens.\n#### 19",
    }

    def __post_init__(self) -> None:
        is_number = self.most_steps is None or self.most_steps > 0
        check_setting("task.arguments.most_steps", self.most_steps, is_number, "a number above 0")

    def read(self, row: Row) -> PromptRow:
        """The question and its solution."""
        question, answer = column(row, "question"), column(row, "answer")
        try:
            gold_answer(answer)
        except UserError as error:
            raise UserError(f"{row[0]}: {error}") from error
        is_out = self.most_steps is not None and len(_MARK.findall(answer)) > self.most_steps
        return question, None if is_out else {"question": question, "answer": answer}

    def gold(self, problem: Problem) -> str | None:
        """The solution without its marks (`<<2+3=5>>`), with its answer in a box."""
        solution = problem.columns["answer"]
        steps = _MARK.sub("", solution.rpartition("####")[0]).strip()
        return f"{steps}\n{boxed(gold_answer(solution))}".strip()
