from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from grouprl.rewards import REWARDS, WeightedReward, boxed_format, correct_answer, judge, resolve_rewards
from grouprl.tasks import WordProblems
from grouprl.types import Completion, Group, Message, Problem, RewardOutcome, StopReason, UserError


def group(problem: Problem, *texts: str) -> Group:
    completions = tuple(
        Completion(n, (n, 7), (-1.0, -1.0), (-1.0, -1.0), text, StopReason.END, 0) for n, text in enumerate(texts)
    )
    return Group(problem, (1, 2, 3), completions)


PLAIN = Problem("a", "3 + 4 = ?", {"answer": "7"})
CHAT = Problem(
    "b", ({"role": "user", "content": "1 + 1 = ?"},), {"answer": "1 + 1 = <<1+1=2>>2\n#### 2", "source": "book"}
)
GROUPS = [group(PLAIN, r"3 + 4 = 7 \boxed{7}", r"\boxed{8}", "7"), group(CHAT, r"\boxed{2.0}", r"\boxed{")]


def one(function: Any, groups: Sequence[Group] = GROUPS) -> list[tuple[RewardOutcome, ...]]:
    return judge(groups, [WeightedReward("it", function, 1.0)])


def test_the_default_rewards_of_a_task_add_up_and_are_recorded_apart() -> None:
    outcomes = judge(GROUPS, resolve_rewards(WordProblems().default_rewards))
    assert [[outcome.total for outcome in part] for part in outcomes] == [[1.5, 0.5, 0.0], [1.5, 0.0]]
    assert outcomes[0][1] == RewardOutcome(0.5, {"boxed_format": 1.0, "correct_answer": 0.0})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{7}", 1.0),
        (r"\boxed{\frac{1}{2}}", 1.0),
        (r"\boxed{}", 0.0),
        (r"\boxed{ }", 0.0),
        (r"\boxed{7", 0.0),
        ("boxed{7}", 0.0),
        ("", 0.0),
    ],
)
def test_boxed_format(text: str, value: float) -> None:
    assert boxed_format(["?"], [text], [[1]]) == [value]
    assert boxed_format([[]], [[{"role": "assistant", "content": text}]], [[1]], answer=["x"]) == [value]


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        (r"\boxed{1,000}", "1000", 1.0),
        (r"\boxed{7.0}", "#### 7", 1.0),
        (r"\boxed{14/2}", "7", 1.0),
        (r"\boxed{14/2}", 7, 1.0),
        (r"\boxed{7} no, \boxed{8}", "7", 0.0),
        ("7", "7", 0.0),
        (r"\boxed{blue}", "blue", 1.0),
        (r"\boxed{7}", None, None),
    ],
)
def test_correct_answer(text: str, answer: object, value: float | None) -> None:
    assert correct_answer(["?"], [text], [[1]], answer=[answer]) == [value]


def test_reward_functions_get_the_keywords_that_trl_gives() -> None:
    seen: dict[str, Any] = {}

    def reward(completions: list[Any], **others: Any) -> list[float]:
        seen.update(others, completions=completions)
        return [0.0] * len(completions)

    one(reward)
    chat: list[Message] = [{"role": "user", "content": "1 + 1 = ?"}]
    assert seen == {
        "prompts": ["3 + 4 = ?"] * 3 + [chat] * 2,
        "completions": [
            r"3 + 4 = 7 \boxed{7}",
            r"\boxed{8}",
            "7",
            [{"role": "assistant", "content": r"\boxed{2.0}"}],
            [{"role": "assistant", "content": r"\boxed{"}],
        ],
        "completion_ids": [[0, 7], [1, 7], [2, 7], [0, 7], [1, 7]],
        "answer": ["7"] * 3 + ["1 + 1 = <<1+1=2>>2\n#### 2"] * 2,
        "source": [None, None, None, "book", "book"],
    }


def test_every_reward_is_called_once_for_all_groups() -> None:
    calls = []

    def reward(completions: list[Any], **_: Any) -> list[float]:
        calls.append(len(completions))
        return [float(n) for n in range(len(completions))]

    outcomes = one(reward)
    assert calls == [5]
    assert [[outcome.total for outcome in part] for part in outcomes] == [[0.0, 1.0, 2.0], [3.0, 4.0]]


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
    first, second, third = judge([group(PLAIN, "x", "y", "z")], rewards)[0]
    assert first == RewardOutcome(1.0, {"a": 1.0, "b": 1.0})
    assert second == RewardOutcome(-0.5, {"a": None, "b": 0.5})
    assert (third.valid, math.isnan(third.total), third.reason) == (False, True, "no reward applies")
    assert third.components == {"a": None, "b": None}


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_value_makes_its_completion_invalid_and_no_other(broken: float) -> None:
    rewards = [WeightedReward("fine", values(1, 1), 1.0), WeightedReward("odd", values(broken, 1), 0.0)]
    bad, good = judge([group(PLAIN, "x", "y")], rewards)[0]
    assert not bad.valid
    assert bad.components == {"fine": 1.0, "odd": None}
    assert bad.reason == f"odd gave {broken}"
    assert good.total == 1.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (values(1, 2), "reward it: expected a list of 5 values, got 2"),
        (values(), "expected a list of 5 values, got 0"),
        (lambda **_: None, "expected a list of 5 values, got NoneType"),
        (lambda **_: (x for x in range(5)), "expected a list of 5 values, got generator"),
        (values(1, 1, 1, "high", 1), r"reward it: expected a number or None for completion 3, got 'high' \(str\)"),
        (values(1, 1, 1, 1j, 1), "expected a number or None for completion 3, got 1j"),
        (lambda completions: [0.0] * 5, "TypeError: .*unexpected keyword argument .*it is called with prompts"),
        (lambda *, solution, **_: [0.0] * 5, "TypeError: .*'solution'.*completion_ids, answer, source"),
    ],
)
def test_a_wrong_result_is_an_error_never_a_zero(function: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        one(function)


def test_an_exception_names_the_reward_and_the_line_and_is_chained() -> None:
    def fails(**_: Any) -> list[float]:
        raise ZeroDivisionError("no pens")

    with pytest.raises(
        UserError, match=r"reward it: .*ZeroDivisionError: no pens \(.*test_rewards\.py:\d+\)"
    ) as caught:
        one(fails)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)

    async def fails_later(**_: Any) -> list[float]:
        raise KeyError("pens")

    with pytest.raises(UserError, match="KeyError: 'pens'"):
        one(fails_later)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_not_taken_for_a_broken_reward(error: type[BaseException]) -> None:
    def interrupted(**_: Any) -> list[float]:
        raise error

    with pytest.raises(error):
        one(interrupted)


def test_correct_answer_without_answers_is_an_error() -> None:
    with pytest.raises(UserError, match=r"reward correct_answer: .*'answer'"):
        judge([group(Problem("a", "?"), "x")], resolve_rewards(["correct_answer"]))


def test_a_column_cannot_take_the_name_of_a_keyword() -> None:
    with pytest.raises(UserError, match="got a column 'completions': rename it"):
        one(values(1), [group(Problem("a", "?", {"completions": []}), "x")])


def test_no_groups_give_no_outcomes() -> None:
    assert one(values(), []) == []


class Judge:
    def __call__(self, **_: Any) -> list[float]:
        return []


def my_reward(**_: Any) -> list[float]:
    return []


def test_rewards_are_resolved_from_names_weights_functions_and_pairs() -> None:
    own = WeightedReward("mine", my_reward, 0.1)
    judge_object = Judge()
    assert resolve_rewards(["boxed_format", my_reward, judge_object, own]) == (
        WeightedReward("boxed_format", boxed_format, 1.0),
        WeightedReward("my_reward", my_reward, 1.0),
        WeightedReward("Judge", judge_object, 1.0),
        own,
    )
    assert resolve_rewards({"boxed_format": 0.5, "correct_answer": 1.0}) == (
        WeightedReward("boxed_format", boxed_format, 0.5),
        WeightedReward("correct_answer", correct_answer, 1.0),
    )
    assert {name: function.__name__ for name, function in REWARDS.items()} == {name: name for name in REWARDS}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (["corect_answer"], "equation_steps, got 'corect_answer': did you mean 'correct_answer'"),
        ({"box_format": 1.0}, "did you mean 'boxed_format'"),
        ([], r"expected a list such as .* got \[\]"),
        ({}, "name at least one"),
        ("correct_answer", "expected a list such as"),
        (my_reward, "expected a list such as"),
        ([7], "expected a name, a function or a WeightedReward, got 7"),
        ([my_reward, my_reward], "got 'my_reward' 2 times"),
        ({"boxed_format": math.nan}, "reward boxed_format: expected a finite weight, got nan"),
    ],
)
def test_unusable_specifications_are_told(spec: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_rewards(spec)
