"""Names: the judges by hand-worked values, the estimate of diversity by enumeration, and the cold start."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from grouprl.problems.names import Names, distinct, rare, spoken
from grouprl.types import UserError

IDS = [[1]]


@pytest.mark.parametrize(
    ("name", "easy", "points"),
    [
        ("Nana", 1.0, 1 / 10),  # n-a, a-n, n-a change; all letters have 1 point
        ("Tree", 1 / 3, 1 / 10),  # r-e alone
        ("Jazz", 2 / 3, 29 / 40),  # j-a and a-z; 8 + 1 + 10 + 10
        ("Ru", 1.0, 1 / 10),  # the hole of the first judge: two letters
        ("Z", 0.0, 1.0),  # and of the second one: a single letter
        ("Zqx", 0.0, 28 / 30), ("", 0.0, 0.0), ("Na na", 0.0, 0.0), ("Zoé", 0.0, 0.0), ("R2", 0.0, 0.0),
    ],
)  # fmt: skip
def test_the_judges_differ_in_taste(name: str, easy: float, points: float) -> None:
    for completion in (name, [{"role": "assistant", "content": name}]):
        assert spoken(["?"], [completion], IDS) == pytest.approx([easy])
        assert rare(["?"], [completion], IDS) == pytest.approx([points])


def test_names_of_a_group_are_compared_with_the_others_of_it() -> None:
    assert distinct(["?"] * 4, ["Ana", "Bo", "Ana", "Cy"], IDS * 4) == pytest.approx([2 / 3, 1, 2 / 3, 1])
    assert distinct(["?"] * 3, ["Z"] * 3, IDS * 3) == [0, 0, 0]
    assert distinct(["?"], ["Ana"], IDS) == [None]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_mean_of_all_groups_is_how_likely_two_names_differ(size: int) -> None:
    """By enumeration: of 0.7 and 0.3 two draws differ in 2 * 0.7 * 0.3 = 0.42 of the cases, whatever the size."""
    chance = {"Ana": 0.7, "Bo": 0.3}
    expected = sum(
        prod(chance[name] for name in group) * sum(distinct([], list(group), [])) / size  # type: ignore[arg-type]
        for group in product(chance, repeat=size)
    )
    assert expected == pytest.approx(0.42)


def test_a_cold_start_has_one_name_for_each_problem_in_the_middle_of_both_tastes() -> None:
    task = Names()
    problems = task.problems("train")[:2000]
    names = [task.worked(problem) for problem in problems]
    assert [task.worked(problem) for problem in problems[:50]] == names[:50]
    assert all(4 <= len(name) <= 7 and name.isalpha() and name.istitle() for name in names)
    assert len(set(names)) > 1900
    # 3 in 4 letters alternate with the one before.
    assert sum(spoken([], names, [])) / 2000 == pytest.approx(0.75, abs=0.02)  # type: ignore[arg-type]
    assert max(rare([], names, [])) < 0.8  # type: ignore[type-var]


def test_no_name_is_right_and_no_prompt_is_in_two_splits() -> None:
    task = Names()
    assert task.verifier is None
    assert task.gold(Names.example()) is None
    prompts = {split: {problem.prompt_text for problem in task.problems(split)} for split in ("validation", "test")}
    prompts["train"] = {problem.prompt_text for problem in task.problems("train")[:5000]}
    assert len(prompts["test"]) == len(prompts["validation"]) == 16
    assert sum(map(len, prompts.values())) == len(set.union(*prompts.values()))
    with pytest.raises(UserError, match=r"task\.eval_problems: expected no more different problems for test than"):
        Names(eval_problems=100).problems("test")
