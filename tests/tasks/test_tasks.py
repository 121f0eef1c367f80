from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grouprl.tasks.base import Split
from grouprl.tasks.named import TASKS, load_task
from grouprl.tasks.rows import task_from_list
from grouprl.types import UserError
from verifying import verdict

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
ROWS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "level": n % 3} for n in range(40)]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("word_problem", "did you mean 'word_problems'"),
        ("GSM8K", "did you mean 'gsm8k'"),
        ("trl-lib/DeepMath-103K", "for a data set .* write hub:trl-lib/DeepMath-103K"),
    ],
)
def test_an_unknown_task_is_reported_with_the_nearest_name(name: str, remedy: str) -> None:
    with pytest.raises(UserError, match=f"task.name: expected .*, got {name!r}: {remedy}"):
        load_task(name)


def test_every_task_goes_by_its_own_name_has_an_example_and_solves_it() -> None:
    pytest.importorskip("reasoning_gym")
    for name, kind in TASKS.items():
        task = kind()
        assert task.name.partition(":")[0] == name
        if name in ("environment", "names"):  # its problems and verdicts are an environment's; no name is right
            continue
        assert task.verifier in task.default_rewards
        example = kind.example()
        if task.verifier == "environment":  # what the policy writes is judged turn by turn
            assert task.gold(example) is None
            continue
        assert task.gold(example)
        if task.verifier != "math_verify":
            assert verdict(task, example, task.gold(example) or "") == 1.0
            assert verdict(task, example, "") == 0.0


@pytest.mark.parametrize(("name", "option"), [("gsm8k", {"difficulty": 2}), ("countdown", {"path": "a.jsonl"})])
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


def test_with_answers_the_final_answer_is_compared_by_value() -> None:
    task = task_from_list(ROWS)
    problem = next(p for p in task.problems("train") if p.columns["answer"] == "7")
    assert verdict(task, problem, r"6 + 1 = 7, so \boxed{7.0}") == 1.0
    assert verdict(task, problem, task.gold(problem) or "") == 1.0
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


def test_a_verifier_may_be_another_reward_of_the_run_or_stand_in_a_file() -> None:
    named = task_from_list(ROWS, verifier="mine")
    assert (named.verifier, named.default_rewards) == ("mine", {"mine": 1.0})
    in_file = task_from_list(ROWS, verifier="my_rewards.py:mine")
    assert (in_file.verifier, in_file.default_rewards) == ("my_rewards.py:mine", {})
    assert in_file.gold(in_file.problems("train")[0]) is None


def test_another_answer_column_takes_the_place_of_answer() -> None:
    rows = [{"prompt": row["prompt"], "answer": "in words", "short": row["answer"]} for row in ROWS]
    task = task_from_list(rows, answer_column="short")
    problem = next(p for p in task.problems("train") if p.prompt == "6 + 1 = ?")
    assert dict(problem.columns) == {"answer": "7"}
    assert (task.verifier, verdict(task, problem, r"\boxed{7}")) == ("correct_answer", 1.0)
    with pytest.raises(
        UserError,
        match=r"list/train/40: expected a column 'short' .* got answer: .*task_from_list\(rows, answer_column=NAME",
    ):
        task_from_list([*rows, {"prompt": "?", "answer": "7"}], answer_column="short")


def test_text_prompts_can_be_made_messages_and_messages_stay() -> None:
    chat = [{"role": "system", "content": "Count."}, {"role": "user", "content": "1 + 1"}]
    task = task_from_list(ROWS, test=[{"prompt": chat, "answer": "2"}], messages=True)
    assert task.problems("test")[0].prompt == tuple(chat)
    plain = task_from_list(ROWS, test=[{"prompt": chat, "answer": "2"}])
    for text, wrapped in zip(plain.problems("train"), task.problems("train"), strict=True):
        assert wrapped.prompt == ({"role": "user", "content": text.prompt},)
        assert (wrapped.id, wrapped.columns) == (text.id, text.columns)


@pytest.mark.parametrize("answer", ["7", "1 + 6 = 7\n#### 7", 7, 7.0, "x^2", 10**900, None])
def test_answers_that_can_be_compared(answer: object) -> None:
    assert task_from_list([{"prompt": "?", "answer": answer}, *ROWS], verifier="correct_answer")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (True, "expected text or a finite number in column 'answer', got True: write it as text"),
        (["7"], r"expected text or a finite number in column 'answer', got \['7'\]"),
        ({"value": 7}, "expected text or a finite number"),
        (float("nan"), "expected text or a finite number .* got nan"),
        (float("-inf"), "expected text or a finite number .* got -inf"),
        (10**5000, "expected text or a finite number .* got a number of more than 1000 digits"),
        ("", "expected an answer of 1 to 10000 characters in column 'answer', got ''"),
        (" \n", "expected an answer of 1 to 10000 characters"),
        ("7" * 10_001, "expected an answer of 1 to 10000 characters"),
        ("so it is\n#### ", "column 'answer': expected a solution that ends in '#### 7'"),
        ("\udfff", "expected Unicode text in column 'answer'"),
    ],
    ids=lambda value: type(value).__name__,  # one of them is too long to be written down
)
@pytest.mark.parametrize("verifier", [None, "correct_answer", "math_verify"])
def test_answers_that_nothing_can_equal_are_refused(verifier: str | None, answer: object, message: str) -> None:
    rows = [*ROWS, {"prompt": "?", "answer": answer}]
    with pytest.raises(UserError, match=f"^list/train/40[:,].*{message}"):
        task_from_list(rows, verifier=verifier)
    assert task_from_list(rows, verifier="mine").verifier == "mine"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "expected a list of rows .* got none"),
        (
            [{"question": "1 + 1", "n": 1}],
            r"list/train/0: expected a column 'prompt', got question, n: .*task_from_list\(rows, prompt_column=NAME",
        ),
        ([*ROWS, {"prompt": ""}], "list/train/40: expected text in column 'prompt', got ''"),
        ([{"prompt": 7}], "expected text in column 'prompt', got 7"),
        ([{"prompt": 10**5000}], "expected text in column 'prompt', got a number of more than 1000 digits"),
        ([{"prompt": []}], r"expected text in column 'prompt', got \[\]: write text, or messages such as"),
        ([{"prompt": [{"role": "user"}]}], r"got \[\{'role': 'user'\}\]: write text, or messages such as \[\{'role'"),
        ([{"prompt": [{"role": "bot", "content": "?"}]}], "one of the roles system, user, assistant, tool in each"),
        ([{"prompt": "a\ud800"}], r"list/train/0: expected Unicode text in column 'prompt', got half of .*'\\ud800'"),
        (["1 + 1 = ?"], "list/train/0: expected a row with columns, got '1"),
    ],
)
def test_unusable_lists_are_reported(rows: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_from_list(rows)


def test_a_prompt_in_two_splits_is_refused() -> None:
    with pytest.raises(UserError, match=r"'5 \+ 1 = \?' in both train and test"):
        task_from_list(ROWS[:10], test=ROWS[5:6])


PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_the_page_names_every_task_and_its_programs_run() -> None:
    assert all(f"`{name}" in PAGE for name in TASKS)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    made: dict[str, Any] = {}
    exec(compile(blocks[1], "docs/tasks.md", "exec", dont_inherit=True), made)
    adder = made["Adder"]()
    adder.reset(start=3)
    assert (adder.add(7), adder.get_reward()) == (10, 1.0)
    for block in blocks[2:]:
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(block, "docs/tasks.md", "exec", dont_inherit=True), names)
        task = names["task"]
        problems = [p for split in SPLITS for p in task.problems(split)]
        assert len({p.prompt for p in problems}) > 40
        assert task.verifier in task.default_rewards
    assert verdict(task, problems[0], task.gold(problems[0])) == 1.0


def test_the_example_of_the_page_with_everything_of_its_own(tmp_path: Path) -> None:
    line = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
    row = json.loads(line)
    (tmp_path / "facts.jsonl").write_text("".join(line.replace("mile", f"mile{n}") for n in range(9)))
    functions: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0], functions)
    command = PAGE[PAGE.index("grouprl train --model MODEL --task jsonl task.path=facts.jsonl") :].partition("```")[0]
    arguments: dict[str, Any] = dict(re.findall(r"task\.arguments\.(\w+)=(\S+)", command))
    assert arguments.pop("messages") == "true"
    task = load_task("jsonl", path=str(tmp_path / "facts.jsonl"), arguments={**arguments, "messages": True})
    assert (task.verifier, task.default_rewards) == ("near.py:correct", {})
    problem = task.problems("train")[0]
    assert [message["role"] for message in problem.prompt] == ["user"]  # type: ignore[index]
    assert dict(problem.columns) == {"answer": row["metres"]}
    texts = [str(row["metres"]), f"It is 1, no: {2 * row['metres']}.", "1,610 m", "many"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    given = ([problem.prompt] * 4, completions, [[]] * 4)
    assert functions["correct"](*given, answer=[row["metres"]] * 4) == [1.0, 0.0, 1.0, 0.0]
    near = functions["near"](*given, answer=[row["metres"]] * 4)
    assert near == pytest.approx([1.0, 0.5, 1609 / 1610, 0.0])
