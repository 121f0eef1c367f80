r"""GSM8K (Cobbe et al. 2021, arXiv:2110.14168) and files in its form: `question`, and `answer` ending in `#### 7`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from grouprl.tasks.answers import gold_answer
from grouprl.tasks.base import Split
from grouprl.tasks.boxed_answers import boxed_prompt
from grouprl.tasks.files import Row, column
from grouprl.tasks.marked_solutions import MarkedSolutions
from grouprl.tasks.sources import PromptRow, read_prompts
from grouprl.types import Problem, UserError

ON_THE_HUB = "hub:openai/gsm8k:main"


@dataclass(frozen=True)
class Gsm8k(MarkedSolutions):
    """The task `gsm8k`.

    `path` is a data file, a folder with train and test (see `tasks.sources.read_prompts`), or None for the data set
    openai/gsm8k on the Hugging Face hub.
    Reading raises UserError with file and line for missing or malformed data.
    """

    path: str | None = None

    @property
    def name(self) -> str:
        """`gsm8k`."""
        return "gsm8k"

    @classmethod
    def example(cls) -> Problem:
        """A problem in GSM8K's form."""
        question = "Ben has 4 bags of 6 pens, and gives 5 pens to Anna. How many pens does Ben have now?"
        answer = "Ben has 4 * 6 = <<4*6=24>>24 pens.\nThen he has 24 - 5 = <<24-5=19>>19 pens.\n#### 19"
        return _problem("gsm8k/example", question, {"question": question, "answer": answer})

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the file; read on the first call."""
        return self._splits[split]

    @cached_property
    def _splits(self) -> Mapping[Split, Sequence[Problem]]:
        return {
            split: tuple(_problem(f"gsm8k/{split}/{n}", *question) for n, question in enumerate(questions))
            for split, questions in read_prompts(self.path or ON_THE_HUB, _read).items()
        }


def _problem(identity: str, question: str, columns: Mapping[str, str]) -> Problem:
    return Problem(identity, boxed_prompt(question), columns)


def _read(row: Row) -> PromptRow:
    question, answer = column(row, "question"), column(row, "answer")
    try:
        gold_answer(answer)
    except UserError as error:
        raise UserError(f"{row[0]}: {error}") from error
    return question, {"question": question, "answer": answer}
