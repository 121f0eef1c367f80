from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl.problems.math_problems import MathProblems
from grouprl.tasks.answers import final_text
from grouprl.tasks.base import Split
from grouprl.tasks.named import load_task
from grouprl.types import UserError
from small_runs import write_rows
from verifying import verdict

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def row(number: int, **change: Any) -> dict[str, Any]:
    return {
        "problem": f"What is half of ${number}$?",
        "solution": f"It is $\\boxed{{\\frac{{{number}}}{{2}}}}$.",
        "level": "Level 1",
        "type": "Prealgebra",
        **change,
    }


def test_a_file_is_cut_by_the_problem_and_its_columns_are_kept(tmp_path: Path) -> None:
    task = load_task("math", path=str(write_rows(tmp_path / "a.jsonl", [row(n) for n in range(100)])))
    assert [len(task.problems(split)) for split in SPLITS] == [80, 10, 10]
    problem = task.problems("train")[0]
    assert problem.id == "math/train/0"
    number = problem.columns["problem"].split("$")[1]
    assert problem.columns["answer"] == f"\\frac{{{number}}}{{2}}"
    assert (problem.columns["level"], problem.columns["type"]) == ("Level 1", "Prealgebra")
    assert problem.prompt[-1] == {"role": "user", "content": f"What is half of ${number}$?"}


def test_gold_is_the_solution_or_the_boxed_answer(tmp_path: Path) -> None:
    rows = [row(2), row(4, answer="2"), {"problem": "What is 1 + 2?", "answer": 3}]
    write_rows(tmp_path / "test.jsonl", rows)
    write_rows(tmp_path / "train.jsonl", [row(n) for n in range(10, 14)])
    task = MathProblems(str(tmp_path), verifier="correct_answer")
    golds = [task.gold(problem) for problem in task.problems("test")]
    assert golds == [rows[0]["solution"], r"\boxed{2}", r"\boxed{3}"]
    for problem, gold in zip(task.problems("test"), golds, strict=True):
        assert final_text(gold or "") == problem.columns["answer"]
        assert verdict(task, problem, gold or "") == 1.0
        assert verdict(task, problem, r"\boxed{17}") == 0.0
    assert verdict(task, task.problems("test")[0], r"\boxed{1}") == 1.0


def test_answers_are_compared_by_their_meaning() -> None:
    pytest.importorskip("math_verify")
    from grouprl.checks.symbolic import MathVerify

    task, problem = MathProblems(), MathProblems.example()
    texts = [task.gold(problem) or "", r"\boxed{3.5}", r"\boxed{3\frac{1}{2}}", r"\boxed{2}", "3.5"]
    answers = [problem.columns["answer"]] * len(texts)
    values = MathVerify()([problem.prompt] * len(texts), texts, [[]] * len(texts), answer=answers)
    assert (values[0], values[1], values[3], values[4]) == (1.0, 1.0, 0.0, 0.0)
    assert task.default_rewards == {"boxed_format": 0.5, "math_verify": 1.0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"problem": "?", "solution": "7"}], r"a\.jsonl:1: expected a solution with its answer in \\boxed"),
        ([row(1), {"problem": "?", "answer": " "}], r"a\.jsonl:2: expected an answer of 1 to 10000 characters"),
        (
            [{"problem": "?", "answer": [7]}],
            r"a\.jsonl:1: expected text or a finite number in column 'answer', got \[7\]",
        ),
        ([{"solution": r"\boxed{7}"}], r":1: expected a column 'problem', got solution"),
        ([{"problem": "?"}], r":1: expected a column 'solution', got problem"),
    ],
)
def test_bad_rows_are_reported_with_their_line(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MathProblems(str(write_rows(tmp_path / "a.jsonl", rows))).problems("train")


def test_nothing_is_loaded_from_the_hub_unless_asked_for() -> None:
    with pytest.raises(UserError, match=r"task\.path=FILE\.jsonl .* or task\.path=hub:OWNER/NAME"):
        MathProblems().problems("train")
