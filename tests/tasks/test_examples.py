"""Worked examples before each prompt, and the forms that a task asks for: which problems, how they read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grouprl import Trainer
from grouprl.config.run import RolloutConfig, RunConfig
from grouprl.problems.countdown import Countdown
from grouprl.problems.formats import ThinkFormat
from grouprl.problems.gsm8k import Gsm8k
from grouprl.problems.math_problems import MathProblems
from grouprl.problems.word_problems import WordProblems
from grouprl.tasks import load_task, task_from_list
from grouprl.tasks.answers import THINK_PROMPT, final_text, with_format, with_think_tags
from grouprl.tasks.base import Task
from grouprl.tasks.examples import with_examples
from grouprl.types import Problem, UserError
from verifying import verdict

SUMS = task_from_list([{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)])
LEFT = [{"prompt": "5 + 5 =", "answer": "10"}, {"prompt": "6 + 6 =", "answer": "12"}]
CHAT = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1 ="}]


def chat(*more: dict[str, str]) -> Task:
    rows = [{"prompt": [*CHAT, *more], "answer": "2"}, {"prompt": [*CHAT[:1], {"role": "user", "content": "2 + 2 ="}]}]
    return task_from_list([rows[0], rows[1] | {"answer": "4"}], validation=LEFT[:1], test=LEFT[1:])


def file(folder: Path, *rows: dict[str, Any]) -> str:
    (folder / "shown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "shown.jsonl")


def test_texts_stand_before_a_text() -> None:
    plain, task = SUMS.problems("train"), with_examples(SUMS, 2)
    first, second = (problem.prompt for problem in plain[:2])
    answers = [problem.columns["answer"] for problem in plain[:2]]
    expected = (
        rf"{first} \boxed{{{answers[0]}}}" + f"\n\n{second} " + rf"\boxed{{{answers[1]}}}" + f"\n\n{plain[2].prompt}"
    )
    assert task.problems("train")[0].prompt == expected
    assert [problem.id for problem in task.problems("train")] == [problem.id for problem in plain[2:]]
    assert [one.id for one in task.problems("test")] == [one.id for one in SUMS.problems("test")]


def test_turns_stand_between_the_system_message_and_the_question() -> None:
    (problem,) = with_examples(chat(), 1).problems("train")
    assert [(message["role"], message["content"]) for message in problem.prompt if not isinstance(message, str)] == [
        ("system", "Add."),
        ("user", "1 + 1 ="),
        ("assistant", r"\boxed{2}"),
        ("user", "2 + 2 ="),
    ]


def test_a_solution_goes_on_where_the_prompt_has_begun_it() -> None:
    (problem,) = with_examples(chat({"role": "assistant", "content": "It is "}), 1).problems("train")
    assert problem.prompt[2] == {"role": "assistant", "content": r"It is \boxed{2}"}


@pytest.mark.parametrize("form", ["boxed", "think"])
def test_what_is_shown_is_right_and_has_the_form_that_is_asked_for(form: str) -> None:
    task = load_task("word_problems", format=form, examples=3)  # type: ignore[arg-type]
    prompt = task.problems("train")[0].prompt
    golds = [one["content"] for one in prompt if not isinstance(one, str) and one["role"] == "assistant"]
    assert len(golds) == 3
    for problem, gold in zip(WordProblems().problems("train"), golds, strict=False):
        assert verdict(task, problem, gold) == 1.0
        assert ("<answer>" in gold) == (form == "think")


def test_endless_problems_stay_lazy() -> None:
    task, plain = (load_task("word_problems", train_problems=10**9, examples=count) for count in (4, 0))
    assert len(task.problems("train")) == 10**9 - 4
    assert task.problems("train")[10**9 - 5].id == plain.problems("train")[10**9 - 1].id


def test_a_file_shows_other_problems(tmp_path: Path) -> None:
    shown = file(tmp_path, {"prompt": "7 + 9 =", "completion": "The sum is 16."})
    task = with_examples(SUMS, shown)
    assert len(task.problems("train")) == len(SUMS.problems("train"))
    assert str(task.problems("test")[0].prompt).startswith("7 + 9 = The sum is 16.\n\n")


@pytest.mark.parametrize("spaces", ["{}", " {} ", "{}\n"])
def test_an_evaluated_problem_is_never_shown(tmp_path: Path, spaces: str) -> None:
    evaluated = spaces.format(str(SUMS.problems("test")[0].prompt).replace(" ", "  " if spaces != "{}" else " "))
    task = with_examples(SUMS, file(tmp_path, {"prompt": evaluated, "completion": "1"}))
    with pytest.raises(UserError, match=r"expected examples that are not evaluated.*shown.jsonl"):
        list(task.problems("test"))


def test_the_parts_of_a_mixture_have_examples_of_their_own() -> None:
    task = load_task("mixture", examples=2, arguments={"countdown": 1, "word_problems": {"examples": 0}})
    counts = {problem.id.partition("/")[0]: len(problem.prompt) for problem in task.problems("test")}
    assert counts == {"countdown": 2 + 4, "word_problems": 1}


@pytest.mark.parametrize("task", [SUMS, [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]])
def test_another_task_that_is_evaluated_has_the_examples_too(task: Any, tmp_path: Path) -> None:
    config = RunConfig(task={"examples": 2}, steps=1, runs_dir=str(tmp_path))
    made = Trainer("abacus", task, config=config, eval_task=LEFT)._task
    prompts = [str(made.problems(split)[0].prompt) for split in ("train", "test")]
    assert [prompt.count("+") for prompt in prompts] == [3, 3]
    assert prompts[1].endswith("\n\n5 + 5 =")
    assert prompts[0].rpartition("\n\n")[0] == prompts[1].rpartition("\n\n")[0]


def test_an_evaluated_task_shares_no_problem_with_the_examples_or_the_trained(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n} + 1 =", "answer": str(n + 1)}) + "\n" for n in range(20)))
    shown = file(tmp_path, {"prompt": "5 + 5 =", "completion": "10"})
    config = RunConfig(task={"examples": shown}, steps=1, runs_dir=str(tmp_path))
    for evaluated, message in ((LEFT, "that are not evaluated"), ([{"prompt": "7 + 1 ="}], "that are not trained on")):
        with pytest.raises(UserError, match=message):
            list(Trainer("abacus", str(rows), config=config, eval_task=evaluated)._task.problems("test"))


@pytest.mark.parametrize(
    ("given", "kept"), [(3, 3), ("3", 3), ("+3", 3), (3.0, 3), ("0", 0), (10_000, 10_000), ("a.jsonl", "a.jsonl")]
)
def test_a_number_is_a_count_in_whatever_form(given: object, kept: object) -> None:
    assert RunConfig.model_validate({"task": {"examples": given}}).task.examples == kept


@pytest.mark.parametrize("given", [-1, "-1", 2.5, "2.5", 10_001, "1e9", True, None, [1], "nan", "inf"])
def test_a_number_that_is_no_count_is_one_error(given: object) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({"task": {"examples": given}})
    (error,) = caught.value.errors()
    assert error["loc"] == ("task", "examples")
    assert "expected a number of train problems from 0 to 10000, or a data file" in error["msg"]


class NoSolutions(WordProblems):
    def gold(self, problem: Problem) -> str | None:
        return None


@pytest.mark.parametrize(
    ("task", "examples", "message"),
    [
        (SUMS, 20, "expected fewer than the [0-9]+ train problems of list, got 20"),
        (NoSolutions(), 1, "expected a solution, got none for problem 'word_problems/train/0'"),
        (SUMS, "nowhere.jsonl", "^task.examples: expected a data file at nowhere.jsonl, found none"),
        (SUMS, "two", "^task.examples: expected a data file at two, found none"),
    ],
)
def test_examples_that_cannot_be_had_are_refused(task: Task, examples: int | str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_examples(task, examples)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1"},
        {"completion": "1"},
        {"prompt": "1", "completion": 3},
        {"prompt": CHAT[:1], "completion": "1"},  # nothing is asked
    ],
)
def test_a_row_without_a_part_is_named(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^task.examples: .*shown.jsonl:1: expected"):
        with_examples(SUMS, file(tmp_path, row))


def test_a_base_model_stops_before_the_next_question() -> None:
    assert RunConfig(model={"chat_template": "question"}).rollout.stop == ("\nQuestion:",)
    own = RunConfig(model={"chat_template": "question"}, rollout=RolloutConfig(stop=("#",), max_tokens=9)).rollout
    assert (own.stop, own.max_tokens) == (("#",), 9)
    assert RunConfig(model={"chat_template": "plain"}).rollout.stop == ()


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
