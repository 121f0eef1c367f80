"""From groups to outcomes: what rewards are called with, what is made of what they give, and when a run stops."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grouprl.problems.word_problems import WordProblems
from grouprl.rewards import built_in, resolve_rewards, verifier_of
from grouprl.rewards.calls import Invalid
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import FromFile, WeightedReward
from grouprl.rewards.rules import boxed_format, correct_answer
from grouprl.types import Group, Message, Problem, RewardOutcome, UserError
from groups import group_of
from judging import judged

PLAIN = Problem("a", "3 + 4 = ?", {"answer": "7"})
CHAT = Problem(
    "b", ({"role": "user", "content": "1 + 1 = ?"},), {"answer": "1 + 1 = <<1+1=2>>2\n#### 2", "source": "book"}
)
GROUPS = [group_of(PLAIN, r"3 + 4 = 7 \boxed{7}", r"\boxed{8}", "7"), group_of(CHAT, r"\boxed{2.0}", r"\boxed{")]


def one(function: Any, groups: Sequence[Group] = GROUPS, **options: Any) -> list[tuple[RewardOutcome, ...]]:
    return judged(groups, [WeightedReward("it", function, 1.0)], **options)


def test_the_default_rewards_of_a_task_add_up_and_are_recorded_apart() -> None:
    outcomes = judged(GROUPS, resolve_rewards(WordProblems().default_rewards))
    assert [[outcome.total for outcome in part] for part in outcomes] == [[1.5, 0.5, 0.0], [1.5, 0.0]]
    assert outcomes[0][1] == RewardOutcome(0.5, {"boxed_format": 1.0, "correct_answer": 0.0})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{7}", 1.0), (r"\boxed{\frac{1}{2}}", 1.0), (r"\boxed{}", 0.0), (r"\boxed{ }", 0.0),
        (r"\boxed{7", 0.0), ("boxed{7}", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_boxed_format(text: str, value: float) -> None:
    assert boxed_format(["?"], [text], [[1]]) == [value]
    assert boxed_format([[]], [[{"role": "assistant", "content": text}]], [[1]], answer=["x"]) == [value]


def noted(path: Path) -> Any:
    """A reward that writes down what it is called with."""

    def reward(completions: list[Any], **others: Any) -> list[float]:
        others = {name: values for name, values in others.items() if isinstance(values, list)}
        with path.open("a") as file:
            print(json.dumps({**others, "completions": completions}), file=file)
        return [float(n) for n in range(len(completions))]

    return reward


def test_each_group_is_one_call_with_the_keywords_that_trl_gives(tmp_path: Path) -> None:
    outcomes = one(noted(tmp_path / "calls"))
    chat: list[Message] = [{"role": "user", "content": "1 + 1 = ?"}]
    calls = sorted(
        map(json.loads, (tmp_path / "calls").read_text().splitlines()), key=lambda call: len(call["prompts"])
    )
    assert calls == [
        {
            "prompts": [chat] * 2,
            "completions": [
                [{"role": "assistant", "content": r"\boxed{2.0}"}],
                [{"role": "assistant", "content": r"\boxed{"}],
            ],
            "completion_ids": [[0, 7], [1, 7]],
            "answer": ["1 + 1 = <<1+1=2>>2\n#### 2"] * 2,
            "source": ["book"] * 2,
        },
        {
            "prompts": ["3 + 4 = ?"] * 3,
            "completions": [r"3 + 4 = 7 \boxed{7}", r"\boxed{8}", "7"],
            "completion_ids": [[0, 7], [1, 7], [2, 7]],
            "answer": ["7"] * 3,
        },
    ]
    assert [[outcome.total for outcome in part] for part in outcomes] == [[0.0, 1.0, 2.0], [0.0, 1.0]]


def test_what_holds_a_model_or_a_connection_is_called_here_once_for_all_groups() -> None:
    calls: list[int] = []

    class Held:
        in_process = True

        def __call__(self, completions: list[Any], **_: Any) -> list[Any]:
            calls.append(len(completions))
            return [0.0, 1.0, Invalid("no answer"), 3.0, None]

    first, second = one(Held())
    assert calls == [5]
    assert [first[0].total, first[1].total, second[0].total] == [0.0, 1.0, 3.0]
    assert [first[2].reason, second[1].reason] == ["it no answer", "no reward applies"]


def test_a_failure_in_the_runs_own_process_is_a_sentence() -> None:
    class Failing:
        in_process = True

        async def __call__(self, completions: list[Any], **_: Any) -> list[Any]:
            raise KeyError("pens")

    with pytest.raises(UserError, match=r"reward it: expected values, got KeyError: 'pens' \(test_rewards.py:\d+\)"):
        one(Failing())


async def lengths(completion_ids: list[list[int]], **_: Any) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(ids)) for ids in completion_ids]


def test_coroutine_functions_are_awaited_even_where_a_loop_already_runs() -> None:
    async def notebook() -> list[tuple[RewardOutcome, ...]]:
        return one(lengths)

    expected = [[2.0] * 3, [2.0] * 2]
    for outcomes in (one(lengths), asyncio.run(notebook())):
        assert [[outcome.total for outcome in part] for part in outcomes] == expected


def values(*given: object) -> Any:
    def reward(**_: Any) -> list[object]:
        return list(given)

    return reward


def test_a_reward_that_does_not_apply_leaves_the_others() -> None:
    rewards = [WeightedReward("a", values(1, None, None), 2.0), WeightedReward("b", values(True, 0.5, None), -1.0)]
    first, second, third = judged([group_of(PLAIN, "x", "y", "z")], rewards)[0]
    assert first == RewardOutcome(1.0, {"a": 1.0, "b": 1.0})
    assert second == RewardOutcome(-0.5, {"a": None, "b": 0.5})
    assert (third.valid, math.isnan(third.total), third.reason) == (False, True, "no reward applies")
    assert third.components == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda **_: None, "it gave a wrong result: expected a list of 1 value, one per completion, got NoneType"),
        (lambda **_: (x for x in range(1)), "it gave a wrong result: .* got generator"),
        (values("high"), r"it gave 'high' \(str\), expected a number or None"),
        (values(1j), "it gave 1j"),
        (lambda **_: 1 / 0, r"it raised ZeroDivisionError: division by zero \(test_rewards\.py:\d+\)"),
    ],
)
def test_a_wrong_result_is_never_a_zero(function: Any, reason: str) -> None:
    (outcome,) = one(function, [group_of(PLAIN, "x")])[0]
    assert math.isnan(outcome.total)
    assert re.fullmatch(reason + ".*", outcome.reason)


def test_a_wrong_count_is_not_asked_for_again_completion_by_completion() -> None:
    """There, a function that gives one value for a group would seem to be right."""
    (found,) = one(values(1.0), [group_of(PLAIN, "x", "y", "z")])
    reason = "it gave a wrong result: expected a list of 3 values, one per completion, got 1"
    assert [outcome.reason for outcome in found] == [reason] * 3


def half_fail(completions: list[str], **_: Any) -> list[float]:
    return [1 / int(text) for text in completions]


def test_a_run_stops_when_too_many_completions_are_invalid() -> None:
    """10 % of at least 50: five invalid ones are let pass in a small step, the sixth is not."""
    sixteen = ["1"] * 16
    with open_scorer([WeightedReward("it", half_fail)]) as scorer:
        finish = lambda *texts: scorer.finish([scorer.begin(group_of(PLAIN, *texts))])  # noqa: E731
        assert sum(outcome.valid for outcome in finish(*["0"] * 5, *sixteen)[0]) == 16
        with pytest.raises(
            UserError, match=r"all but 10% .* got 6 invalid of the last 22: it raised ZeroDivisionError"
        ):
            finish("0")


def test_what_failed_long_ago_no_longer_counts() -> None:
    with open_scorer([WeightedReward("it", half_fail)]) as scorer:
        for _ in range(8):
            scorer.finish([scorer.begin(group_of(PLAIN, *["0"] * 4, *["1"] * 96))])


def test_not_a_single_invalid_completion_may_be_allowed() -> None:
    with pytest.raises(UserError, match="got 1 invalid of the last 3: it raised ZeroDivisionError"):
        one(half_fail, [group_of(PLAIN, "1", "1", "0")], max_invalid=0.0)
    one(half_fail, [group_of(PLAIN, "0", "0", "0")], max_invalid=1.0)


def test_a_column_that_no_problem_has_is_told_before_the_first_step() -> None:
    def reward(completions: list[str], *, solution: list[str], **_: Any) -> list[float]:
        return [0.0 for _ in completions]

    with open_scorer([WeightedReward("mine", reward)]) as scorer:
        scorer.check_columns([PLAIN, Problem("c", "?", {"solution": "7"})])
        with pytest.raises(
            UserError, match=r"reward mine: expected problems with the column 'solution', got answer, sou"
        ):
            scorer.check_columns([PLAIN, CHAT])


def test_the_verifier_says_what_is_correct_and_is_not_called_twice(tmp_path: Path) -> None:
    verifier = WeightedReward("it", noted(tmp_path / "calls"))
    with open_scorer([verifier], verifier=verifier) as scorer:
        (outcomes,) = scorer.finish([scorer.begin(group_of(PLAIN, "x", "y", "z"))])
        assert [outcome.correct for outcome in outcomes] == [False, True, True]
        assert len((tmp_path / "calls").read_text().splitlines()) == 1
        assert scorer.verify([group_of(PLAIN, "x", "y")]) == [(False, True)]


def test_a_verifier_beside_the_rewards_enters_neither_total_nor_record() -> None:
    rewards = [WeightedReward("right", values(0.25, 0.5))]
    for name in ("right", "other"):
        verifier = WeightedReward(name, values(None, 1))
        with open_scorer(rewards, verifier=verifier) as scorer:
            (outcomes,) = scorer.finish([scorer.begin(group_of(PLAIN, "x", "y"))])
        assert outcomes == (RewardOutcome(0.25, {"right": 0.25}), RewardOutcome(0.5, {"right": 0.5}, correct=True))


def test_a_verifier_that_fails_is_told_not_counted_as_wrong() -> None:
    with open_scorer([], verifier=WeightedReward("it", half_fail)) as scorer:
        assert scorer.verify([group_of(PLAIN, "1", "0", "2")]) == [(True, None, False)]
        with pytest.raises(UserError, match="got 6 invalid of the last 6: it raised ZeroDivisionError"):
            scorer.verify([group_of(PLAIN, *"000000")])


def half_ones(completions: list[str], **_: Any) -> list[float]:
    return [0.5 for _ in completions]


def test_a_verifier_is_found_by_the_name_of_a_reward_a_task_or_a_file(tmp_path: Path) -> None:
    own = WeightedReward("mine", my_reward, 0.3)
    assert verifier_of("mine", [own], {}) is own
    assert verifier_of("mine", [own], {"mine": half_ones}) == WeightedReward("mine", half_ones)
    assert verifier_of("correct_answer", [own], {}) == WeightedReward("correct_answer", correct_answer)
    assert verifier_of(None, [own], {}) is None
    path = tmp_path / "checks.py"
    path.write_text("def right(completions):\n    return [float(text == 'x') for text in completions]\n")
    found = verifier_of(f"{path}:right", [own], {})
    with open_scorer([], verifier=found) as scorer:
        assert scorer.verify([group_of(PLAIN, "x", "y")]) == [(True, False)]
    with pytest.raises(UserError, match="expected one of"):
        verifier_of("nowhere", [own], {})


def test_functions_that_cannot_travel_are_told() -> None:
    import threading

    lock = threading.Lock()

    def reward(completions: list[str], **_: Any) -> list[float]:
        with lock:
            return [0.0 for _ in completions]

    with pytest.raises(
        UserError, match=r"reward it: expected a function that can be sent to another process, got .*lock"
    ):
        one(reward)


def test_a_column_cannot_take_the_name_of_a_keyword() -> None:
    with pytest.raises(UserError, match="got a column 'completions': rename it"):
        one(values(1), [group_of(Problem("a", "?", {"completions": []}), "x")])


class Own:
    def __call__(self, **_: Any) -> list[float]:
        return []


def my_reward(**_: Any) -> list[float]:
    return []


def test_functions_with_one_name_of_their_own_are_told_apart() -> None:
    def scaled(completions: list[str], *, by: float, **columns: Any) -> list[float]:
        return [by * len(text) for text in completions]

    functions = [lambda **_: [1.0], partial(scaled, by=1.0), lambda **_: [2.0], partial(scaled, by=2.0), my_reward]
    rewards = resolve_rewards(functions)
    assert [reward.name for reward in rewards] == ["lambda", "scaled", "lambda_2", "scaled_2", "my_reward"]
    assert [reward.function for reward in rewards] == functions


def test_rewards_are_resolved_from_names_weights_functions_and_pairs() -> None:
    own = WeightedReward("mine", my_reward, 0.1)
    judge_object = Own()
    assert resolve_rewards(["boxed_format", my_reward, judge_object, own]) == (
        WeightedReward("boxed_format", boxed_format, 1.0),
        WeightedReward("my_reward", my_reward, 1.0),
        WeightedReward("Own", judge_object, 1.0),
        own,
    )
    assert resolve_rewards({"boxed_format": 0.5, "correct_answer": 1.0}) == (
        WeightedReward("boxed_format", boxed_format, 0.5),
        WeightedReward("correct_answer", correct_answer, 1.0),
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (["corect_answer"], "equation_steps, .*got 'corect_answer': did you mean 'correct_answer'"),
        ({"box_format": 1.0}, "did you mean 'boxed_format'"),
        ([], r"expected a list such as .* got \[\]"),
        ({}, "name at least one"),
        ("correct_answer", "expected a list such as"),
        (my_reward, "expected a list such as"),
        ([7], "expected a name, a function or a WeightedReward, got 7"),
        ([my_reward, my_reward], "got 'my_reward' 2 times"),
        ({"boxed_format": math.nan}, "reward boxed_format: expected a weight of at most 1e.06 in size, got nan"),
    ],
)
def test_unusable_specifications_are_told(spec: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_rewards(spec)


def test_arguments_of_a_function_without_settings_are_told() -> None:
    with pytest.raises(UserError, match="reward boxed_format: expected no arguments, got pattern"):
        built_in("boxed_format", arguments={"pattern": "x"})


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reward mine: expected a Python file at .*nowhere.py, found none"):
        FromFile(str(tmp_path / "nowhere.py"), "mine")
