from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.problems.countdown import Countdown
from grouprl.problems.formats import ThinkFormat
from grouprl.problems.gsm8k import Gsm8k
from grouprl.problems.math_problems import MathProblems
from grouprl.problems.word_problems import WordProblems
from grouprl.tasks.answers import THINK_PROMPT, final_text, with_format, with_think_tags
from grouprl.tasks.base import Task
from grouprl.tasks.named import load_task
from grouprl.tasks.rows import task_from_list
from verifying import verdict

PLAIN = task_from_list([{"prompt": f"{n} + 1 = ?", "answer": str(n + 1)} for n in range(20)])


def well_formed(text: str) -> bool:
    return ThinkFormat()([""], [text], [[]]) == [1.0]


def test_as_it_is_a_task_is_left_alone() -> None:
    task = WordProblems()
    assert with_format(task) is task


@pytest.mark.parametrize("task", [WordProblems(), Countdown(), PLAIN])
def test_thinking_is_asked_for_rewarded_and_shown_in_gold(task: Task) -> None:
    thinking = with_format(task, "think")
    problem, before = thinking.problems("train")[3], task.problems("train")[3]
    assert thinking.name == task.name
    assert problem.id == before.id
    assert problem.columns == before.columns
    assert THINK_PROMPT in problem.prompt_text
    assert "boxed" not in problem.prompt_text
    assert dict(thinking.default_rewards) == {"think_format": 0.5, task.verifier: 1.0}
    gold = thinking.gold(problem) or ""
    assert well_formed(gold)
    assert not well_formed(task.gold(problem) or "")
    assert verdict(thinking, problem, gold) == 1.0
    assert thinking.default_step_rewards == task.default_step_rewards
    assert thinking.traits("1 + 2 = 3") == {"worked": True}


def test_the_system_prompt_takes_the_place_of_the_task_s_or_goes_before_a_text() -> None:
    messages = with_format(Countdown(), "think").problems("train")[0].prompt
    assert [message["role"] for message in messages if not isinstance(message, str)] == ["system", "user"]
    text = with_format(PLAIN, system_prompt="Count.").problems("train")[0].prompt
    assert isinstance(text, str)
    assert re.fullmatch(r"Count\.\n\n[0-9]+ \+ 1 = \?", text)
    assert with_format(PLAIN, system_prompt="").problems("train")[0] == PLAIN.problems("train")[0]


@pytest.mark.parametrize(
    ("form", "words", "expected"),
    [
        ("boxed", "Count.", "Count."),
        ("think", "Count.", f"Count.\n\n{THINK_PROMPT}"),
        ("boxed", "", ""),
        ("think", "", ""),
    ],
)
def test_an_own_system_prompt_comes_before_the_instruction_of_the_tags(form: str, words: str, expected: str) -> None:
    task = load_task("countdown", format=form, system_prompt=words)  # type: ignore[arg-type]
    roles = {message["role"]: message["content"] for message in task.problems("test")[0].prompt}  # type: ignore[index]
    assert roles.get("system", "") == expected
    assert ("think_format" in task.default_rewards) == (form == "think")


def test_thinking_adds_no_reward_where_the_task_rewards_no_form() -> None:
    programs = load_task("code", format="think")
    assert programs.default_rewards == {"unit_tests": 1.0}
    assert THINK_PROMPT in programs.problems("train")[0].prompt_text


def test_lazy_problems_stay_lazy_and_those_in_memory_stay_there() -> None:
    endless = with_format(WordProblems(train_problems=10**9), "think").problems("train")
    assert len(endless) == 10**9
    assert THINK_PROMPT in endless[10**9 - 1].prompt_text
    assert isinstance(with_format(PLAIN, "think").problems("train"), tuple)


def test_gold_of_other_forms() -> None:
    for task, example in ((Gsm8k(), Gsm8k.example()), (MathProblems(), MathProblems.example())):
        gold = with_format(task, "think").gold(example) or ""
        assert well_formed(gold)
        assert final_text(gold) == final_text(task.gold(example) or "")
    assert well_formed(with_think_tags("```python\nprint(7)\n```"))
    assert final_text(with_think_tags("```python\nprint(7)\n```")) == "```python\nprint(7)\n```"
    assert well_formed(with_think_tags(r"\boxed{7}"))
    assert with_think_tags("<answer>7</answer>") == "<think>The answer is known.</think>\n<answer>7</answer>"


@given(st.text(alphabet="ab {}\\$\n7", max_size=20).filter(str.strip), st.sampled_from(["7", "x^2", r"\frac{1}{2}"]))
def test_the_answer_survives(thought: str, answer: str) -> None:
    changed = with_think_tags(rf"{thought} \boxed{{{answer}}}")
    assert well_formed(changed)
    assert final_text(changed) == answer
