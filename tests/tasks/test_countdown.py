from __future__ import annotations

import pickle
import re
from fractions import Fraction

import pytest

from grouprl.problems.countdown import Countdown
from grouprl.tasks.base import Split
from grouprl.tasks.named import load_task
from grouprl.types import Problem, UserError
from verifying import verdict

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
TASK = Countdown(train_problems=300, eval_problems=60)
PROBLEM = Problem("x", ({"role": "user", "content": "?"},), {"numbers": [3, 5, 7, 7], "target": 49, "solution": "?"})


def box(answer: str) -> str:
    return rf"Let me see. \boxed{{{answer}}}"


@pytest.mark.parametrize("difficulty", [2, 3, 4, 5, 6])
def test_difficulty_is_how_many_numbers_and_gold_is_right_by_python_s_arithmetic(difficulty: int) -> None:
    for problem in Countdown(difficulty=difficulty).problems("train")[:100]:
        numbers, target, solution = (problem.columns[name] for name in ("numbers", "target", "solution"))
        assert len(numbers) == difficulty
        assert sorted(map(int, re.findall("[0-9]+", solution))) == sorted(numbers)
        exact = re.sub("([0-9]+)", r"Fraction(\1)", solution)
        assert eval(exact, {"Fraction": Fraction}) == target
        assert verdict(TASK, problem, TASK.gold(problem) or "") == 1.0
        assert 10 <= target <= 99
        assert target not in numbers
        assert all(1 <= number <= 99 for number in numbers)
        assert all(str(number) in problem.prompt_text for number in (*numbers, target))


@pytest.mark.parametrize(
    "answer",
    [
        "7 * (5 - 3) * 7 / 2",  # a 2 out of nowhere
        "(3 + 5) * 7 - 7 - 0",
        "49",
        "7 * 7",  # not all of them
        "(5 - 3) * 7 + 5 * 7",
        "57 - 7 - 3 + 2",
        "(3 + 5) * 7 + 7",  # 63
        "7 * 7 * (5 - 3) ** 0",
        "7^(5 - 3)",
        "-7 + 7 * (3 + 5)",
        "(3 + 5)7 - 7",
        "(3 + 5) * 7 - 7 = 50",
        "(3 + 5) * 7 - 7 = 49 = 49",
        "49 = (3 + 5) * 7 - 7",
        "(3 + 5) * 7 - 7 or 7 * 7",
        "(3 + 5) * 7 - 7, (3 + 5) * 7 - 7",
        "7 / (3 - 3) * 5 * 7",
        "3.0 + 5 * 7 - 7",
        "__import__('os').getcwd()",
        "9" * 5000,
        "(" * 5000,
        "",
    ],
)
def test_answers_that_are_wrong(answer: str) -> None:
    assert verdict(TASK, PROBLEM, box(answer)) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "(3 + 5) * 7 - 7",
        "((3+5)*7)-7",
        "(3 + 5) * 7 - 7 = 49",
        "(5 + 3) × 7 − 7",
        r"(3 + 5) \times 7 - 7",
        "7 * 7 * (5 - 3)",
    ],
)
def test_answers_in_many_forms(answer: str) -> None:
    right = 49 if "(5 - 3)" not in answer else 98
    problem = Problem("x", PROBLEM.prompt, {**PROBLEM.columns, "target": right})
    assert verdict(TASK, problem, box(answer)) == 1.0
    assert verdict(TASK, problem, f"<think>hm</think><answer>{answer}</answer>") == 1.0
    assert verdict(TASK, problem, answer) == 0.0  # not where the answer belongs


def test_with_any_numbers_some_may_be_left_but_none_used_twice() -> None:
    loose = Countdown(use_all=False)
    assert verdict(loose, PROBLEM, box("7 * 7")) == 1.0
    assert verdict(TASK, PROBLEM, box("7 * 7")) == 0.0
    assert verdict(loose, PROBLEM, box("5 * 5 + 3 * 7 + 3")) == 0.0
    assert "at most once" in loose.problems("train")[0].prompt_text
    assert "exactly once" in TASK.problems("train")[0].prompt_text


def test_splits_share_no_numbers_and_target_whatever_the_order_and_the_seed() -> None:
    for difficulty in (2, 3):
        tasks = [Countdown(difficulty=difficulty, train_problems=600, eval_problems=100, seed=seed) for seed in (0, 1)]
        keys = {
            split: {
                (tuple(sorted(p.columns["numbers"])), p.columns["target"]) for t in tasks for p in t.problems(split)
            }
            for split in SPLITS
        }
        assert sum(map(len, keys.values())) == len(set.union(*keys.values()))
    held_out = [(tuple(sorted(p.columns["numbers"])), p.columns["target"]) for p in TASK.problems("test")]
    assert len(set(held_out)) == len(held_out) == 60


def test_the_task_by_name_and_its_reward_can_be_sent_to_a_worker() -> None:
    task = load_task("countdown", difficulty=4, seed=3, arguments={"use_all": False})
    assert task == Countdown(difficulty=4, seed=3, use_all=False)
    assert (task.verifier, task.default_rewards) == ("countdown", {"boxed_format": 0.5, "countdown": 1.0})
    assert pickle.loads(pickle.dumps(task.own_rewards)) == task.own_rewards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"difficulty": 1}, "task.difficulty: expected 2 to 6, got 1"),
        ({"difficulty": 7}, "task.difficulty: expected 2 to 6, got 7"),
        ({"use_all": "yes"}, "task.arguments.use_all: expected true or false, got 'yes'"),
        ({"train_problems": 0}, "task.train_problems: expected at least 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        Countdown(**options)
