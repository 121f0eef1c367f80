r"""GSM8K (Cobbe et al. 2021, arXiv:2110.14168) and files in its form: `question`, and `answer` ending in `#### 7`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from grouprl.tasks.answers import gold_answer
from grouprl.tasks.base import Split
from grouprl.tasks.files import Row, column, read_folder, read_hub, read_rows
from grouprl.tasks.marked import MarkedSolutions
from grouprl.tasks.splits import partition
from grouprl.types import Problem, UserError

SYSTEM_PROMPT = "Reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Gsm8k(MarkedSolutions):
    r"""The task `gsm8k`.

    `path` is a .jsonl or .parquet file (cut into train, validation and test by the hash of the question, 80/10/10), a
    folder with train.jsonl and test.jsonl (or .parquet), or None for the data set on the Hugging Face hub; the last
    two give 5 % of train to validation. A question met twice counts once, and in test before train.
    `system_prompt` goes before every question; an empty one leaves it out.
    Reading raises UserError for anything missing or malformed, naming file and line.
    """

    path: str | None = None
    system_prompt: str | None = SYSTEM_PROMPT

    @property
    def name(self) -> str:
        """`gsm8k`."""
        return "gsm8k"

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in the order of the file; read on the first call."""
        return self._splits[split]

    @cached_property
    def _splits(self) -> Mapping[Split, Sequence[Problem]]:
        answers, splits = _read(self.path)
        questions: dict[Split, list[str]] = {"train": [], "validation": [], "test": []}
        for question in answers:
            questions[splits[question]].append(question)
        return {
            split: tuple(self._problem(f"gsm8k/{split}/{n}", text, answers[text]) for n, text in enumerate(texts))
            for split, texts in questions.items()
        }

    def _problem(self, identity: str, question: str, answer: str) -> Problem:
        system = ({"role": "system", "content": self.system_prompt},) if self.system_prompt else ()
        return Problem(
            identity, (*system, {"role": "user", "content": question}), {"question": question, "answer": answer}
        )


def _read(path: str | None) -> tuple[dict[str, str], dict[str, Split]]:
    """Question -> answer, and question -> split."""
    if path is not None and not Path(path).is_dir():
        answers = _answers(read_rows(Path(path)))
        return answers, partition(answers, validation=0.1, test=0.1)
    names = ("train", "test")
    rows = read_hub("openai/gsm8k", "main", names) if path is None else read_folder(Path(path), names)
    test = _answers(rows["test"])
    train = {question: answer for question, answer in _answers(rows["train"]).items() if question not in test}
    splits = partition(train, validation=0.05, test=0.0)
    return train | test, splits | dict.fromkeys(test, "test")


def _answers(rows: Sequence[Row]) -> dict[str, str]:
    answers: dict[str, str] = {}
    for row in rows:
        question, answer = column(row, "question"), column(row, "answer")
        try:
            gold_answer(answer)
        except UserError as error:
            raise UserError(f"{row[0]}: {error}") from error
        answers.setdefault(question, answer)
    return answers
