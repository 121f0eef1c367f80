from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from grouprl.problems.chains import Chains
from grouprl.tasks.answers import gold_answer, is_worked, last_boxed
from grouprl.types import Problem, UserError
from small_runs import grouprl
from verifying import verdict

TASK = Chains()
PROBLEMS = TASK.problems("train")[:1200]
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)\.")
MEANINGS = {
    "+": r"finds|buys|as a gift|picks",
    "-": r"gives|loses|sells|eats",
    "*": r"times|multiplies|for each|makes",
    "/": r"piles|shares|divides|packs",
}


def meanings(problem: Problem) -> list[str]:
    """The operation of each phrase, independently of the generator."""
    said = problem.columns["question"].removesuffix(". How many now?").split(", ")[1:]
    return [next(symbol for symbol, words in MEANINGS.items() if re.search(words, phrase)) for phrase in said]


def test_gold_follows_the_phrases_by_python_s_arithmetic() -> None:
    for problem in PROBLEMS:
        first, *operands = map(int, re.findall(r"\d+", problem.columns["question"]))
        expression = str(first)
        for symbol, operand in zip(meanings(problem), operands, strict=True):
            expression = f"({expression} {symbol} {operand})"
        assert eval(expression) == int(gold_answer(problem.columns["answer"])) in range(1, 100)
        assert verdict(TASK, problem, TASK.gold(problem) or "") == 1.0


def test_attempts_are_worked_and_computed_right_and_mostly_wrong() -> None:
    """Most of the attempts at each operation take another one, so a habit of working solves nothing."""
    taken: dict[str, Counter[str]] = {symbol: Counter() for symbol in MEANINGS}
    for problem in PROBLEMS:
        text = TASK.worked(problem)
        steps = EQUATION.findall(text)
        assert is_worked(text)
        assert all(eval(f"{left} {symbol} {right}") == int(result) for left, symbol, right, result in steps)
        assert steps[-1][3] == last_boxed(text)
        for meant, (_, symbol, _, _) in zip(meanings(problem), steps, strict=True):
            taken[meant][symbol] += 1
    assert all(counts[symbol] < 0.4 * counts.total() for symbol, counts in taken.items())
    right = sum(verdict(TASK, problem, TASK.worked(problem)) == 1.0 for problem in PROBLEMS)
    assert 0.05 < right / len(PROBLEMS) < 0.18


def test_difficulty_is_the_largest_number_of_operations() -> None:
    for difficulty in (1, 3, 6):
        lengths = {len(meanings(problem)) for problem in Chains(difficulty=difficulty).problems("train")[:200]}
        assert lengths == set(range(1, difficulty + 1))
    with pytest.raises(UserError, match=r"task\.difficulty: expected 1 to 8, got 9"):
        Chains(difficulty=9)


def test_the_bundled_model_works_every_problem_out_and_has_it_to_learn() -> None:
    settings = ("evaluation.problems=40", "evaluation.samples=8", "rollout.max_tokens=48")
    found = json.loads(grouprl("eval", "abacus_chains", "--task", "chains", *settings, "--json").out)
    assert found["worked_share"] > 0.98
    assert found["pass_at_1"] < 0.15
    assert found["pass_at_8"] > 0.3
