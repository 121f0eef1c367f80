r"""SVAMP (Patel et al. 2021, arXiv:2103.07191): 1,000 problems of one or two operations, written by people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from grouprl.tasks import arithmetic
from grouprl.tasks.answers import EQUATION_STEPS, BoxedAnswers, boxed, parse_value
from grouprl.tasks.base import Split, check_setting
from grouprl.tasks.files import Row, column
from grouprl.tasks.sources import FileProblems, PromptRow
from grouprl.types import Problem, UserError

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_OPERATION = re.compile(r"[-+*/]")
_SIZES = (10, 20, 50, 100, 1000, 10**4, 10**9)  # a number of a copy is as large as the next of these at most
_TRIES = 1000  # to draw numbers whose answer is a whole number from 0 on; of two numbers up to 100 one in 20 divides


@dataclass(frozen=True)
class Svamp(FileProblems, BoxedAnswers):
    """The task `svamp`, with rows of `Body`, `Question`, `Equation` and `Answer`.

    `path` is a data file such as SVAMP.json, a folder with train and test (see `tasks.sources`), or None for the data
    set ChilleD/SVAMP on the Hugging Face hub. `largest` leaves out the rows in whose text a number is larger, and
    `most_steps` those whose equation has more operations. Of a single file 50 % of the stories are for training, 40 %
    for tests, 10 % for validation; rows that differ in their numbers and questions alone are one story. `copies` adds
    to each train problem as many with other numbers of the same size, the answer by the equation.
    """

    path: str | None = None
    largest: int | None = None
    most_steps: int | None = None
    copies: int = 0
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
        check_setting("task.arguments.copies", self.copies, 0 <= self.copies <= 100, "a number from 0 to 100")

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the file; after those of train their copies."""
        problems = super().problems(split)
        return [*problems, *self._copied] if split == "train" and self.copies else problems

    @cached_property
    def _copied(self) -> Sequence[Problem]:
        """The copies of the train problems, first one of each problem, then the second ones."""
        problems = super().problems("train")
        copied = (self._renumbered(problem, index) for index in range(self.copies) for problem in problems)
        originals = {problem.columns["question"] for problem in problems}
        by_text = {problem.columns["question"]: problem for problem in copied if problem is not None}
        return [problem for text, problem in by_text.items() if text not in originals]

    def _renumbered(self, problem: Problem, index: int) -> Problem | None:
        """The problem with other numbers; None where the text lacks a number of the equation, or says one twice."""
        text, equation = problem.columns["question"], problem.columns["equation"]
        numbers = _NUMBER.findall(text)
        operands = {_number(number) for number in _NUMBER.findall(equation)}
        if len(set(numbers)) < len(numbers) or not operands <= set(numbers) or not all(map(str.isdigit, numbers)):
            return None
        draws = Random(f"{index} {text}")
        sizes = [next(size for size in _SIZES if int(number) <= size) for number in numbers]
        for _ in range(_TRIES):
            others = [str(draws.randint(2, size)) for size in sizes]
            other = dict(zip(numbers, others, strict=True))
            renumbered = _NUMBER.sub(lambda match: other[_number(match.group())], equation)  # noqa: B023  used at once
            try:
                answer = arithmetic.evaluate(renumbered)
            except arithmetic.UnreadableError:  # divided by 0
                continue
            if len(set(others)) == len(others) and answer >= 0 and answer == int(answer):
                question = _NUMBER.sub(lambda match: other[match.group()], text)  # noqa: B023  used at once
                columns = {"question": question, "equation": renumbered, "answer": str(int(answer))}
                return Problem(f"{problem.id}.{index + 1}", self.prompt(question), columns, problem.place)
        return None

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
