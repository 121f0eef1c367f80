from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grouprl.problems.svamp import Svamp
from grouprl.tasks.base import Split
from grouprl.tasks.held_out import trained_on_the_rest
from grouprl.tasks.named import load_task
from grouprl.types import UserError
from verifying import verdict

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def row(body: str, question: str = "How many are left?", equation: str = "( 9.0 - 4.0 )", answer: Any = 5.0) -> Any:
    return {
        "ID": "x",
        "Body": body,
        "Question": question,
        "Equation": equation,
        "Answer": answer,
        "Type": "Subtraction",
    }


def written(path: Path, rows: list[Any]) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


def test_the_form_of_a_problem_and_its_solution(tmp_path: Path) -> None:
    rows = [
        row("Dan had 9 pens. He lost 4 of them "),
        row("Ann has 3 bags, ", "How many pens does she have?", "( ( 4.0 + 1.5 ) * 3.0 )", "16.5"),
        row("8 planks are needed.", "How many?", "8.0", 8),
    ]
    task = Svamp(written(tmp_path / "a.json", rows))
    problems = [problem for split in SPLITS for problem in task.problems(split)]
    shown = {problem.columns["question"]: task.gold(problem) for problem in problems}
    assert shown == {
        "Dan had 9 pens. He lost 4 of them, how many are left?": "9 - 4 = 5. \\boxed{5}",
        "Ann has 3 bags, how many pens does she have?": "(4 + 1.5) * 3 = 16.5. \\boxed{16.5}",
        "8 planks are needed. How many?": "8 = 8. \\boxed{8}",
    }
    for problem in problems:
        assert verdict(task, problem, task.gold(problem) or "") == 1.0
        assert verdict(task, problem, "\\boxed{77}") == 0.0


def test_rows_that_differ_in_numbers_and_questions_are_one_story_in_one_split(tmp_path: Path) -> None:
    rows = [
        row(f"{name} had {number} pens and lost some.", question)
        for name in ("Ann", "Ben", "Cem", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jan")
        for number in (5, 60, 700)
        for question in ("How many are left?", "How many did he lose?")
    ]
    task = Svamp(written(tmp_path / "a.json", rows))
    names = [{problem.columns["question"][:3] for problem in task.problems(split)} for split in SPLITS]
    assert [len(part) for part in names] == [5, 1, 4]
    assert len(set.union(*names)) == 10
    small = Svamp(written(tmp_path / "b.json", rows[::-1]), largest=100)
    for split, part in zip(SPLITS, names, strict=True):
        questions = [problem.columns["question"] for problem in small.problems(split)]
        assert len(questions) == 4 * len(part)
        assert {question[:3] for question in questions} == part
    for split, trained in (("test", names[0] | names[1]), ("validation", names[0]), (None, names[0] | names[1])):
        problems = trained_on_the_rest(task, split).problems("train")
        assert {problem.columns["question"][:3] for problem in problems} == trained  # never of the tests


def test_copies_of_train_problems_have_other_numbers_and_the_answer_of_their_equation(tmp_path: Path) -> None:
    rows = [row(f"{name}{letter} had 9 pens and lost 4 of them.") for name in ("Ann", "Ben") for letter in "abcdefgh"]
    rows += [
        row(f"Cem{letter} packs 60 pens into bags of 15.", "How many bags?", "( 60.0 / 15.0 )", 4.0)
        for letter in "abcdefgh"
    ]
    refused = [
        row(f"Dan{letter} {body}", equation=equation, answer=answer)
        for letter in "abcdefghijkl"
        for body, equation, answer in (
            ("had two pens and 7 more.", "( 2.0 + 7.0 )", 9.0),  # 2 is a word
            ("had 5 pens and 5 more.", "( 5.0 + 5.0 )", 10.0),  # which 5?
            ("had 2.5 pens and 5 more.", "( 2.5 + 5.0 )", 7.5),
        )
    ]
    path = written(tmp_path / "a.json", [*rows, *refused])
    plain, task = Svamp(path), Svamp(path, copies=3)
    for split in ("validation", "test"):
        assert task.problems(split) == plain.problems(split)
    originals, problems = plain.problems("train"), task.problems("train")
    assert problems[: len(originals)] == originals
    copies = problems[len(originals) :]
    assert task.problems("train") == Svamp(path, copies=3).problems("train")
    texts = [problem.columns["question"] for problem in problems]
    assert len(set(texts)) == len(texts) == len({problem.id for problem in problems})
    made = {text: re.sub(r"\d+", "#", text) for text in texts}
    for problem in copies:
        text, answer = problem.columns["question"], int(problem.columns["answer"])
        first, second = map(int, re.findall(r"\d+", text))
        assert made[text] in {made[other.columns["question"]] for other in originals}
        assert not text.startswith("Dan")
        assert (first, second) not in ((9, 4), (60, 15))
        if "packs" in text:
            assert (first <= 100, second <= 20, answer * second) == (True, True, first)
        else:
            assert (first <= 10, second <= 10, second + answer) == (True, True, first)
        assert verdict(task, problem, task.gold(problem) or "") == 1.0
    for original in originals:
        kept = [problem for problem in copies if problem.id.startswith(f"{original.id}.")]
        assert len(kept) <= 3
    assert len(copies) > 2 * len([text for text in texts[: len(originals)] if not text.startswith("Dan")])


def test_larger_numbers_and_more_steps_can_be_left_out(tmp_path: Path) -> None:
    rows = [
        row(f"{letter}{'x' * other} had {number} pens.", equation=equation, answer=500)  # an answer may be larger
        for other in range(10)
        for letter, number, equation in (
            ("A", "100", "( 9.0 - 4.0 )"),
            ("B", "100.5", "( 9.0 - 4.0 )"),
            ("C", "7", "( ( 9.0 - 4.0 ) - 1.0 )"),
        )
    ]
    path = written(tmp_path / "a.json", rows)
    for arguments, left in (
        ({"largest": 100}, "AC"),
        ({"most_steps": 1}, "AB"),
        ({"largest": 100, "most_steps": 1}, "A"),
    ):
        task = load_task("svamp", path=path, arguments=arguments)
        texts = {problem.columns["question"] for split in SPLITS for problem in task.problems(split)}
        assert sorted(text[0] for text in texts) == sorted(10 * left)
    with pytest.raises(UserError, match=r"task\.arguments\.copies: expected a number from 0 to 100, got -1: change it"):
        load_task("svamp", path=path, arguments={"copies": -1})
    with pytest.raises(UserError, match=r"task\.arguments\.largest: expected a number above 0, got -1: change it"):
        load_task("svamp", path=path, arguments={"largest": -1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Answer": "many"}, r"a\.json.*: expected a number in the column Answer, got 'many'"),
        ({"Answer": None}, r"a\.json.*: expected a number in the column Answer, got None"),
        ({"Body": ""}, r"a\.json.*: expected text in column 'Body'"),
        ({"Equation": 3}, r"a\.json.*: expected text in column 'Equation'"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Svamp(written(tmp_path / "a.json", [row("A had 9 pens."), row("B had 9 pens.") | change])).problems("train")
