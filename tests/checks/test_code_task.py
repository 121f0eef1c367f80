from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from grouprl.checks.code import Code
from grouprl.checks.sandbox import BACKENDS, why_unavailable
from grouprl.checks.unit_tests import UnitTests
from grouprl.tasks.base import Split
from grouprl.types import Problem, UserError

HUMAN_EVAL = {
    "task_id": "Own/0",
    "prompt": 'from typing import List\n\n\ndef last(items: List[int]) -> int:\n    """The last item."""\n',
    "canonical_solution": "    return items[-1]\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 2\n    assert candidate([3]) == 3\n",
    "entry_point": "last",
}


def mbpp(number: int, **change: Any) -> dict[str, Any]:
    return {
        "text": f"Add {number} to a number.",
        "code": f"def plus_{number}(x):\r\n  return x + {number}",
        "test_list": [f"assert plus_{number}(1) == {number + 1}", f"assert plus_{number}(-1) == {number - 1}"],
        **change,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def every(task: Code) -> list[Problem]:
    """Each problem once: of few rows a split without one shares those of another."""
    splits = [problem for split in get_args(Split) for problem in task.problems(split)]
    return list({problem.prompt_text: problem for problem in splits}.values())


def judged(problems: list[Problem], completions: list[str]) -> list[float | None]:
    reward = UnitTests()
    return [
        reward([problem.prompt], [text], [[]], **{name: [value] for name, value in problem.columns.items()})[0]
        for problem, text in zip(problems, completions, strict=True)
    ]


sandboxed = pytest.mark.skipif(all(why_unavailable(name) for name in BACKENDS), reason="no sandbox works here")


@sandboxed
def test_the_bundled_solutions_pass_and_others_do_not():
    task = Code()
    problems = every(task)
    assert {split: len(task.problems(split)) for split in get_args(Split)} == {"train": 19, "validation": 3, "test": 3}
    assert judged(problems, [task.gold(problem) or "" for problem in problems]) == [1.0] * 25
    assert judged(problems, [task.gold(problem) or "" for problem in [*problems[1:], problems[0]]]) == [0.0] * 25


@sandboxed
def test_the_shown_tests_are_not_all_tests():
    """A program that holds the shown answers and nothing else fails every bundled problem."""
    problems = every(Code())
    shown = [problem.columns["test_list"][0].removeprefix("assert ") for problem in problems]
    assert all(test in problem.prompt_text for test, problem in zip(shown, problems, strict=True))
    for problem in problems:
        assert not any(test in problem.prompt_text for test in problem.columns["test_list"][1:])


@sandboxed
def test_both_forms_are_read_and_their_solutions_pass(tmp_path: Path):
    task = Code(write(tmp_path / "a.jsonl", [HUMAN_EVAL, mbpp(1), mbpp(2, test_imports=["import math"])]))
    problems = every(task)
    assert judged(problems, [task.gold(problem) or "" for problem in problems]) == [1.0] * 3
    [head] = [problem for problem in problems if "Complete" in problem.prompt_text]
    assert head.columns["test_list"] == ["assert last([1, 2]) == 2", "assert last([3]) == 3"]
    assert judged([head, head], ["    return items[-1]", "    return items[0]"]) == [1.0, 0.0]


def test_the_prompt_has_the_text_the_name_and_the_first_assert(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", [mbpp(number) for number in range(3)])
    prompts = [problem.prompt_text for problem in every(Code(path)) if "Add 2" in problem.prompt_text]
    assert prompts == [
        "Add 2 to a number.\nName the function `plus_2`.\nIt should pass this test:\n```python\n"
        "assert plus_2(1) == 3\n```\nWrite the code in one ```python block."
    ]
    none = [problem.prompt_text for problem in every(Code(path, shown_tests=0)) if "Add 2" in problem.prompt_text]
    assert none == ["Add 2 to a number.\nName the function `plus_2`.\nWrite the code in one ```python block."]
    assert all("(-1)" in problem.prompt_text for problem in every(Code(path, shown_tests=2)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (mbpp(7, test_list=["assert plus_7(1) == plus_7(1)"]), r"a.jsonl:4: .*itself.*leave_out=true"),
        (mbpp(7, test_list=[]), r"a.jsonl:4: .*no assert"),
        (mbpp(7, test_list="assert plus_7(1) == 8"), r"a.jsonl:4: expected asserts in column 'test_list'"),
        ({"text": "x"}, r"a.jsonl:4: expected asserts in column 'test_list', got None"),
        (mbpp(7, text=""), r"a.jsonl:4: expected text in column 'text'"),
        (
            {**HUMAN_EVAL, "test": "def check(candidate):\n    for i in range(3):\n        assert candidate([i]) == i"},
            "nothing but",
        ),
    ],
)
def test_a_row_that_is_no_problem_is_named(tmp_path: Path, row: dict[str, Any], message: str):
    path = write(tmp_path / "a.jsonl", [*map(mbpp, range(3)), row])
    with pytest.raises(UserError, match=message):
        Code(path).problems("train")


LONG = "+".join(["1"] * 3000)


@pytest.mark.parametrize(
    "row",
    [
        *(mbpp(10, test_list=[f"assert plus_10(1) == {value}"]) for value in (LONG, "'\ud800'", "10**10**8")),
        {**HUMAN_EVAL, "test": f"def check(candidate):\n    assert candidate([1]) == {LONG}\n"},
    ],
    ids=["a long sum", "half a character", "a tower", "a long sum in a check"],
)
def test_a_test_that_python_itself_cannot_read_is_refused_with_its_line(tmp_path: Path, row: dict[str, Any]):
    path = write(tmp_path / "a.jsonl", [*map(mbpp, range(9)), row])
    with pytest.raises(UserError, match=r"a.jsonl:10: .*leave_out=true"):
        Code(path).problems("train")
    assert len(every(Code(path, leave_out=True))) == 9


def test_the_example_and_the_traits():
    assert "middle" in Code.example().prompt_text
    assert Code().traits("```python\nx\n```") == {"fenced": True}
    assert Code().traits("x") == {"fenced": False}
    assert (Code().name, Code().verifier, Code().default_rewards) == ("code", "unit_tests", {"unit_tests": 1.0})
