from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from grouprl.tasks.base import Split
from grouprl.tasks.from_list import task_from_list
from grouprl.tasks.named import TASKS, load_task
from grouprl.types import UserError
from verifying import verdict

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
ROWS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "level": n % 3} for n in range(40)]


@pytest.mark.parametrize(("name", "nearest"), [("word_problem", "word_problems"), ("gsm8", "gsm8k"), ("GSM8K", None)])
def test_an_unknown_task_is_told_with_the_nearest_one(name: str, nearest: str | None) -> None:
    remedy = f"did you mean {nearest!r}" if nearest else "use one of these"
    with pytest.raises(UserError, match=f"task.name: expected one of .*, word_problems, got {name!r}: {remedy}"):
        load_task(name)


def test_every_task_goes_by_its_own_name_has_an_example_and_solves_it() -> None:
    pytest.importorskip("reasoning_gym")
    for name, kind in TASKS.items():
        task = kind()
        assert task.name.partition(":")[0] == name
        assert task.verifier in task.default_rewards
        example = kind.example()
        assert task.gold(example)
        if task.verifier != "math_verify":
            assert verdict(task, example, task.gold(example) or "") == 1.0
            assert verdict(task, example, "") == 0.0


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("gsm8k", {"difficulty": 2}),
        ("gsm8k", {"eval_problems": 100}),
        ("word_problems", {"path": "a.jsonl"}),
        ("countdown", {"path": "a.jsonl"}),
        ("math", {"train_problems": 10}),
    ],
)
def test_an_option_that_a_task_does_not_have_is_refused(name: str, option: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"task\.{next(iter(option))}: the task {name} has no such option"):
        load_task(name, **option)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("countdown", {"use_al": False}, r"task\.arguments: expected one of use_all, got 'use_al': did you mean"),
        ("countdown", {"difficulty": 4}, r"task\.arguments: expected one of use_all, got 'difficulty'"),
        ("word_problems", {"use_all": False}, r"task\.arguments: the task word_problems has none, got 'use_all'"),
        ("countdown:3", {}, r"task\.name: expected one of"),
        ("reasoning_gym", {}, r"expected reasoning_gym:NAME, such as reasoning_gym:spell_backward"),
    ],
)
def test_settings_of_a_task_alone(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_task(name, arguments=arguments)


def test_a_list_is_cut_into_disjoint_splits_and_keeps_its_columns() -> None:
    task = task_from_list(ROWS)
    assert [len(task.problems(split)) for split in SPLITS] == [32, 4, 4]
    problems = [p for split in SPLITS for p in task.problems(split)]
    assert sorted((p.prompt, p.columns["answer"], p.columns["level"]) for p in problems) == sorted(
        (row["prompt"], row["answer"], row["level"]) for row in ROWS
    )
    assert len({p.id for p in problems}) == 40
    assert not any("prompt" in p.columns for p in problems)


def test_equal_prompts_stay_in_one_split() -> None:
    task = task_from_list([*ROWS, *ROWS])
    prompts = [{p.prompt for p in task.problems(split)} for split in SPLITS]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 40
    assert sum(len(task.problems(split)) for split in SPLITS) == 80


def test_given_held_out_lists_are_used_whole() -> None:
    task = task_from_list(ROWS[:20], validation=ROWS[20:25], test=ROWS[25:])
    assert [[p.prompt for p in task.problems(split)] for split in SPLITS] == [
        [row["prompt"] for row in rows] for rows in (ROWS[:20], ROWS[20:25], ROWS[25:])
    ]
    half_given = task_from_list((row for row in ROWS[:20]), test=ROWS[20:])
    assert [len(half_given.problems(split)) for split in SPLITS] == [18, 2, 20]


def test_one_problem_is_enough_when_the_held_out_ones_are_given() -> None:
    assert len(task_from_list(ROWS[:1], validation=ROWS[1:2], test=ROWS[2:3]).problems("train")) == 1


def test_chat_prompts_pass_through() -> None:
    messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": "1 + 1"}]
    rows = [{"prompt": [*messages[:1], {"role": "user", "content": f"{n} + 1"}]} for n in range(3)]
    problem = task_from_list([{"prompt": messages}], validation=rows[:1], test=rows[2:]).problems("train")[0]
    assert problem.prompt == tuple(messages)
    assert dict(problem.columns) == {}


def test_with_answers_the_final_answer_is_compared_by_value() -> None:
    task = task_from_list(ROWS)
    problem = next(p for p in task.problems("train") if p.columns["answer"] == "7")
    assert verdict(task, problem, r"6 + 1 = 7, so \boxed{7.0}") == 1.0
    assert verdict(task, problem, task.gold(problem) or "") == 1.0
    assert verdict(task, problem, r"7 \boxed{8}") == 0.0
    assert verdict(task, problem, "7") == 0.0
    assert task.verifier == "correct_answer"
    assert task.default_rewards == {"boxed_format": 0.5, "correct_answer": 1.0}
    assert task.default_step_rewards == {"equation_steps": 1.0}


@pytest.mark.parametrize("rows", [[{"prompt": f"Write {n} words."} for n in range(5)], [*ROWS, {"prompt": "?"}] * 2])
def test_without_answers_nothing_judges(rows: list[dict[str, Any]]) -> None:
    task = task_from_list(rows)
    if any(problem.columns.get("answer") is None for problem in task.problems("train")):
        assert (task.verifier, task.default_rewards, task.default_step_rewards) == (None, {}, {})
        assert task.gold(task.problems("train")[0]) is None


def words_wanted(prompts: Any, completions: Any, completion_ids: Any, *, words: Any, **columns: Any) -> list[float]:
    return [float(len(text.split()) == count) for text, count in zip(completions, words, strict=True)]


def test_a_verifier_of_one_s_own_judges_and_is_the_default_reward() -> None:
    rows = [{"prompt": f"Write {n} words.", "words": n, "good": "word " * n} for n in range(1, 6)]
    task = task_from_list(rows, name="lengths", verifier=words_wanted, gold_column="good")
    problem = next(p for split in SPLITS for p in task.problems(split) if p.columns["words"] == 2)
    assert (verdict(task, problem, "two words"), verdict(task, problem, "one")) == (1.0, 0.0)
    assert verdict(task, problem, task.gold(problem) or "") == 1.0
    assert (task.name, problem.id.split("/")[0]) == ("lengths", "lengths")
    assert task.default_rewards == {"words_wanted": 1.0}


def test_a_built_in_verifier_by_name_and_another_prompt_column() -> None:
    rows = [{"question": f"{n} + 1 = ?", "answer": str(n + 1), "prompt": "kept"} for n in range(5)]
    task = task_from_list(rows, verifier="math_verify", prompt_column="question")
    problem = task.problems("train")[0]
    assert problem.prompt.endswith(" + 1 = ?")
    assert problem.columns["prompt"] == "kept"
    assert task.default_rewards == {"boxed_format": 0.5, "math_verify": 1.0}
    assert task.gold(problem) == rf"\boxed{{{problem.columns['answer']}}}"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "expected a list of rows .* got none"),
        ([{"question": "1 + 1"}], r"list/train/0: expected a column 'prompt' .* got \{'question': '1 \+ 1'\}"),
        ([*ROWS, {"prompt": ""}], "list/train/40: expected a column 'prompt'"),
        ([{"prompt": 7}], "expected a column 'prompt'"),
        ([{"prompt": []}], "expected a column 'prompt'"),
        ([{"prompt": [{"role": "user"}]}], "expected a column 'prompt'"),
        (["1 + 1 = ?"], "expected a column 'prompt' .* got '1"),
        (ROWS[:2], "expected more than 2 different questions, got 2"),
    ],
)
def test_unusable_lists_are_told(rows: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_from_list(rows)


def test_a_prompt_in_two_splits_is_refused() -> None:
    with pytest.raises(UserError, match=r"'5 \+ 1 = \?' in both train and test"):
        task_from_list(ROWS[:10], test=ROWS[5:6])


PAGE = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_the_page_names_every_task_and_its_programs_run() -> None:
    assert all(f"`{name}" in PAGE for name in TASKS)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(block, "docs/tasks.md", "exec", dont_inherit=True), names)
        task = names["task"]
        problems = [p for split in SPLITS for p in task.problems(split)]
        assert len({p.prompt for p in problems}) > 40
        assert task.verifier in task.default_rewards
    assert verdict(task, problems[0], task.gold(problems[0])) == 1.0
