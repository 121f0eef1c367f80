"""The task `mixture`: ratios, order, rewards and held-out problems of its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from grouprl.rewards.configured import open_scorer
from grouprl.rewards.resolve import resolve_rewards
from grouprl.tasks.curriculum import PassRates, UniformOrder
from grouprl.tasks.mixture import CORRECT, PART, Mixture, MixturePart
from grouprl.tasks.named import load_task
from grouprl.tasks.rows import task_from_list
from grouprl.types import Problem, UserError
from groups import group_of
from verifying import verdict

SMALL = {"train_problems": 60, "eval_problems": 20}


def mixture(**arguments: Any) -> Any:
    return load_task("mixture", arguments=arguments)


def of_parts(problems: Any) -> Counter[str]:
    return Counter(problem.columns[PART] for problem in problems)


def test_an_epoch_has_the_ratios_exactly_and_every_beginning_of_it_nearly() -> None:
    task = mixture(countdown={"ratio": 3, **SMALL}, word_problems={"ratio": 1.5, **SMALL})
    problems = task.problems("train")
    assert of_parts(problems) == {"countdown": 120, "word_problems": 60}  # 2 to 1; every problem of both occurs
    for end in range(1, len(problems) + 1):
        assert abs(of_parts(problems[:end])["countdown"] - end * 2 / 3) <= 1
    assert {problem.id for problem in problems if problem.columns[PART] == "word_problems"} == {
        problem.id for problem in load_task("word_problems", train_problems=60).problems("train")
    }


def test_a_problem_that_occurs_again_has_an_id_of_its_own() -> None:
    problems = mixture(countdown={"ratio": 2, **SMALL}, word_problems=SMALL).problems("train")
    assert len({problem.id for problem in problems}) == len(problems)
    again = [problem for problem in problems if problem.id.endswith("#2")]
    assert len(again) == 60
    first = {problem.id: problem for problem in problems}
    assert all(first[one.id.removesuffix("#2")].prompt == one.prompt for one in again)


def test_one_part_gives_the_sequence_of_its_task() -> None:
    for split in ("train", "validation", "test"):
        plain = load_task("countdown", seed=5, **SMALL).problems(split)
        mixed = load_task("mixture", seed=5, arguments={"countdown": {"ratio": 7, **SMALL}}).problems(split)
        assert list(plain) == [replace(one, columns=without_part(one)) for one in mixed]
    task, plain_task = mixture(countdown=SMALL), load_task("countdown", **SMALL)
    assert task.default_rewards == plain_task.default_rewards
    assert task.verifier == plain_task.verifier


def without_part(problem: Problem) -> dict[str, Any]:
    return {name: value for name, value in problem.columns.items() if name != PART}


@pytest.mark.parametrize("per_step", [1, 4, 7])
def test_the_order_resumes_anywhere_and_does_not_depend_on_the_size_of_a_step(per_step: int) -> None:
    arguments = {"countdown": {"ratio": 3, **SMALL}, "word_problems": SMALL}

    def ids(size: int, steps: range) -> list[str]:
        order, problems = UniformOrder(size, seed=3), mixture(**arguments).problems("train")  # as a new process does
        visits = [visit for step in steps for visit in order.visits(problems, step=step, rates=PassRates())]
        return [problem.id for problem, _ in visits]

    whole = ids(per_step, range(1, 85))
    assert whole == ids(per_step, range(1, 41)) + ids(per_step, range(41, 85))
    assert whole == ids(1, range(1, 1 + 84 * per_step))


def test_held_out_problems_are_those_of_each_part_and_the_first_are_of_all() -> None:
    task = mixture(countdown={"ratio": 9, **SMALL}, word_problems={"eval_problems": 40})
    found = task.problems("validation")
    assert of_parts(found) == {"countdown": 20, "word_problems": 40}
    assert of_parts(found[:30]) == {"countdown": 10, "word_problems": 20}
    wanted = {one.id for one in load_task("countdown", **SMALL).problems("validation")}
    assert {one.id for one in found if one.columns[PART] == "countdown"} == wanted


def test_a_part_of_ratio_0_is_only_evaluated() -> None:
    task = mixture(countdown={"ratio": 0, **SMALL}, word_problems=SMALL)
    assert of_parts(task.problems("train")) == {"word_problems": 60}
    assert of_parts(task.problems("test")) == {"countdown": 20, "word_problems": 20}


def test_each_problem_is_judged_by_its_part() -> None:
    task = mixture(countdown=SMALL, word_problems=SMALL)
    assert (task.verifier, task.default_rewards) == (CORRECT, {"boxed_format": 0.5, CORRECT: 1.0})
    assert set(task.own_rewards) == {CORRECT, "countdown"}  # all parts reward the box
    for problem in task.problems("test"):
        assert verdict(task, problem, task.gold(problem)) == 1.0
        assert verdict(task, problem, r"\boxed{-1}") == 0.0


def test_a_reward_that_one_part_has_does_not_apply_to_the_others() -> None:
    task = mixture(code={}, countdown=SMALL)
    assert task.default_rewards == {CORRECT: 1.0, "boxed_format": 0.5}
    first = {problem.columns[PART]: problem for problem in task.problems("test")[:40]}
    groups = [group_of(first[part], "no answer") for part in ("code", "countdown")]
    rewards = resolve_rewards(dict(task.default_rewards), task.own_rewards)
    with open_scorer(rewards) as scorer:  # in worker processes, as a run does
        (code,), (countdown,) = scorer.finish([scorer.begin(group) for group in groups])
    assert (code.components, countdown.components) == (
        {CORRECT: 0.0, "boxed_format": None},
        {CORRECT: 0.0, "boxed_format": 0.0},
    )


def test_the_format_of_the_mixture_is_that_of_its_parts() -> None:
    arguments = {"countdown": SMALL, "word_problems": {"format": "boxed", **SMALL}}
    task = load_task("mixture", format="think", arguments=arguments)
    assert task.default_rewards == {"boxed_format": 0.5, "think_format": 0.5, CORRECT: 1.0}
    problem = next(one for one in task.problems("train") if one.columns[PART] == "countdown")
    assert "<think>" in problem.prompt_text


def test_a_label_names_a_part_and_keeps_ids_apart(tmp_path: Any) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(f'{{"prompt": "{n} + {n} = ?", "answer": "{2 * n}"}}\n' for n in range(30)))
    task = mixture(one={"name": str(path)}, two={"name": "countdown", **SMALL})
    ids = {problem.columns[PART]: problem.id for problem in task.problems("train")[:2]}
    assert ids["one"].startswith("one/jsonl/train/")
    assert ids["two"] == "two/countdown/train/0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"countdown": -1}, r"task.arguments.countdown.ratio: expected a number of 0 or more, got -1"),
        ({"countdown": float("nan")}, r"countdown.ratio: expected a number of 0 or more, got nan"),
        ({"countdown": True}, r"countdown.ratio: expected a number of 0 or more, got True"),
        ({"countdown": 0, "word_problems": 0}, r"task.arguments: expected a part with a ratio above 0, got none"),
        ({"countdow": 1}, r"task.arguments.countdow: task.name: expected one of .*did you mean 'countdown'"),
        ({"countdown": {"ratios": 1}}, r"task.arguments.countdown: expected one of .*did you mean 'ratio'"),
        ({"countdown": {"difficulty": "x"}}, r"task.arguments.countdown.difficulty: expected another value, got 'x'"),
        ({"mixture": 1}, r"task.arguments.mixture: expected a task, got a mixture"),
        ({"countdown": 0.00001, "word_problems": 1}, r"expected ratios that whole numbers up to 10000 can write"),
    ],
)
def test_what_is_no_mixture_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        mixture(**arguments)


def test_parts_without_a_verifier_or_with_the_column_of_the_mixture_are_refused() -> None:
    rows = [{"prompt": f"Write {n} words."} for n in range(30)]
    with pytest.raises(UserError, match="a task whose verifier is built in, got none"):
        Mixture({"words": MixturePart(task_from_list(rows))})
    named = task_from_list([{"prompt": f"{n} = ?", "answer": n, PART: "own"} for n in range(30)])
    with pytest.raises(UserError, match="without a column 'part'"):
        Mixture({"numbers": MixturePart(named)}).problems("train")[0]


def test_a_function_of_a_part_gets_the_columns_that_it_names() -> None:
    def short(completions: list[str], limit: list[int]) -> list[float]:
        return [float(len(text) <= most) for text, most in zip(completions, limit, strict=True)]

    listed = task_from_list([{"prompt": f"Write {n}.", "limit": n} for n in range(1, 31)], verifier=short)
    task = Mixture({"words": MixturePart(listed), "countdown": MixturePart(load_task("countdown", **SMALL))})
    problem = next(one for one in task.problems("train") if one.columns.get("limit") == 5)
    assert [verdict(task, problem, text) for text in ("12345", "123456")] == [1.0, 0.0]
