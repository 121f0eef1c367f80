r"""SVAMP (Patel et al. 2021, arXiv:2103.07191): 1,000 problems of one or two operations, written by people."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grouprl.tasks.answers import EQUATION_STEPS, BoxedAnswers, boxed, parse_value
from grouprl.tasks.base import check_setting
from grouprl.tasks.files import Row, column
from grouprl.tasks.sources import FileProblems, PromptRow
from grouprl.types import Problem, UserError

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_OPERATION = re.compile(r"[-+*/]")


@dataclass(frozen=True)
class Svamp(FileProblems, BoxedAnswers):
    """The task `svamp`, with rows of `Body`, `Question`, `Equation` and `Answer`.

    `path` is a data file such as SVAMP.json, a folder with train and test (see `tasks.sources`), or None for the data
    set ChilleD/SVAMP on the Hugging Face hub. `largest` leaves out the rows in whose text a number is larger, and
    `most_steps` those whose equation has more operations. Of a single file 50 % of the stories are for training, 40 %
    for tests, 10 % for validation; rows that differ in their numbers and questions alone are one story.
    """

    path: str | None = None
    largest: int | None = None
    most_steps: int | None = None
    name = "svamp"
    default_path = "hub:ChilleD/SVAMP"
    test_share = 0.4
    default_step_rewards = EQUATION_STEPS
    example_row = {  # noqa: RUF012  declared by FileProblems
        "Body": "Ben has 30 pens. He gives 5 pens to Anna.",
        "Question": "How many pens does Ben have now?",
        "Equation": "( 30.0 - 5.0 )",
        "Answer": 25.0,
    }

    def __post_init__(self) -> None:
        for name in ("largest", "most_steps"):
            value = getattr(self, name)
            check_setting(f"task.arguments.{name}", value, value is None or value > 0, "a number above 0")

    def read(self, row: Row) -> PromptRow:
        """The body and the question in one text, the equation and the answer."""
        body, question, equation = (column(row, name).strip() for name in ("Body", "Question", "Equation"))
        answer = _number(str(row[1].get("Answer", "")))
        if parse_value(answer) is None:
            raise UserError(
                f"{row[0]}: expected a number in the column Answer, got {row[1].get('Answer')!r}: correct it"
            )
        is_sentence = body.endswith((".", "?", "!"))
        text = f"{body} {question}" if is_sentence else f"{body.rstrip(' ,')}, {question[0].lower()}{question[1:]}"
        numbers = [float(number) for number in _NUMBER.findall(text)]
        operations = len(_OPERATION.findall(equation))
        is_out = (self.largest is not None and max(numbers, default=0) > self.largest) or (
            self.most_steps is not None and operations > self.most_steps
        )
        return text, None if is_out else {"question": text, "equation": equation, "answer": answer}

    def story(self, row: Row, text: str) -> str:
        """The body without its numbers: other numbers and questions make no other story."""
        return _NUMBER.sub("#", str(row[1]["Body"]).strip())

    def gold(self, problem: Problem) -> str | None:
        """The equation and the answer in a box."""
        equation = _NUMBER.sub(lambda number: _number(number.group()), problem.columns["equation"])
        equation = equation.removeprefix("( ").removesuffix(" )").replace("( ", "(").replace(" )", ")")
        return f"{equation} = {problem.columns['answer']}. {boxed(problem.columns['answer'])}"


def _number(text: str) -> str:
    return text.removesuffix(".0")
