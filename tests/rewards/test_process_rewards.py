"""Process rewards: which equations count as steps, which token ends a step, and what reaches the record."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl import WeightedReward
from grouprl.models.load import load_tokenizer
from grouprl.problems.step_rewards import equation_steps
from grouprl.rewards.outcomes import last_tokens
from grouprl.types import Completion, Group, Problem, StopReason
from judging import judged

GOLD = "15 - 3 = <<15-3=12>>12\n12 - 5 = <<12-5=7>>7\n#### 7"


def steps(text: str, gold: str = GOLD) -> list[tuple[str, float]]:
    """The text up to the end of each step, and its value."""
    found = equation_steps(["?"], [text], [[1]], answer=[gold])[0]
    return [(text[:end], value) for end, value in found]


def test_a_worked_solution_earns_every_step() -> None:
    assert steps("15 - 3 = 12. 12 - 5 = 7. \\boxed{7}") == [("15 - 3 = 12", 1.0), ("15 - 3 = 12. 12 - 5 = 7", 1.0)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("I think 7. \\boxed{7}", []),
        ("15 - 3 = 13. 13 - 5 = 8. \\boxed{8}", [0, 0]),  # wrong, then right but leading nowhere
        ("15 - 5 = 10. 10 - 3 = 7. \\boxed{7}", [0, 1]),  # its own way to a result of the solution
        ("15 - 3 = 12. 15 - 3 = 12. 12 - 5 = 7.", [1, 0, 1]),  # repeating pays nothing
        ("1 + 1 = 2. 2 + 2 = 4. 15 - 3 = 12.", [0, 0, 1]),  # nor does what is true but idle
        ("15 - 3 = 12 - 5 = 7", [1]),
        ("15 / 0 = 12", [0]),
        ("$15 - $3 = $12", [1]),
    ],
)
def test_what_counts_as_a_step(text: str, values: list[float]) -> None:
    assert [value for _, value in steps(text)] == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("3 + 4 * 5 = 23, then 3 + 4 * 5 = 23", [1, 0]), ("2 x 3 × 4 = 24", [1]), ("2 * 3 / 4 = 1.5", [1]),
        ("1,200 \\div 4 \\times 2 = 600", [1]), ("7 + 5 = 13", [0]), ("10 - 2 - 3 = 5", [1]), ("-5 + 7 = 2", [1]),
        ("3 + 4 = 7. 3+4 = 7. 3  + 4 = 7.", [1, 0, 0]),
    ],
)  # fmt: skip
def test_without_marks_a_right_equation_counts_once(text: str, values: list[float]) -> None:
    assert [value for _, value in steps(text, "#### 9")] == values


def test_without_an_answer_it_does_not_apply() -> None:
    assert equation_steps(["?", "?"], ["1 + 1 = 2"] * 2, [[1]] * 2, answer=[None, GOLD]) == [None, [(9, 0.0)]]


def test_a_long_text_of_digits_and_signs_is_quick() -> None:
    assert len(equation_steps(["?"], ["1+" * 50_000 + "1=2"], [[1]], answer=[GOLD])) == 1


def group(tiny: Path, *texts: str) -> Group:
    tokenizer = load_tokenizer(str(tiny))
    completions = []
    for index, text in enumerate(texts):
        ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
        logprobs = (-1.0,) * len(ids)
        completions.append(Completion(index, ids, logprobs, logprobs, text, StopReason.END, 0))
    return Group(Problem("p", "?", {"answer": GOLD}), (1,), tuple(completions))


def test_a_step_ends_at_the_token_that_completes_it(tiny: Path) -> None:
    tokenizer, text = load_tokenizer(str(tiny)), "Ünter 15 - 3 = 12. 12 - 5 = 7. \\boxed{7}"
    ids = group(tiny, text).completions[0].token_ids
    ends = range(1, len(text) + 1)
    for end, token in zip(ends, last_tokens(ids, ends, tokenizer), strict=True):
        assert len(tokenizer.decode(ids[: token + 1])) >= end
        assert token == 0 or len(tokenizer.decode(ids[:token])) < end
    assert last_tokens(ids, [10**6], tokenizer) == [len(ids) - 1]


def test_steps_stand_beside_the_total(tiny: Path) -> None:
    worked, guess = "15 - 3 = 12. 12 - 5 = 8. \\boxed{8}", "I think there are 7. \\boxed{7}"
    rewards = [
        WeightedReward("correct", lambda prompts, completions, completion_ids, **columns: [0.0, 1.0], 1.5),
        WeightedReward("equations", equation_steps, 0.5, per_step=True),
    ]
    sampled = group(tiny, worked, guess)
    (first, second) = judged([sampled], rewards, load_tokenizer(str(tiny)))[0]
    assert (first.total, first.components) == (0.0, {"correct": 0.0, "equations": 0.5})
    assert [step.reward for step in first.steps] == [0.5, 0.0]
    tokenizer, ids = load_tokenizer(str(tiny)), sampled.completions[0].token_ids
    assert tokenizer.decode(ids[: first.steps[0].end + 1]).strip() == "15 - 3 = 12"
    assert (second.total, second.components, second.steps) == (1.5, {"correct": 1.0, "equations": None}, ())


def test_a_process_reward_that_holds_a_model_gives_steps_too(tiny: Path) -> None:
    class Held:
        in_process = True

        def __call__(self, completions: list[str], **columns: Any) -> list[Any]:
            return [[(1, 0.5)] for _ in completions]

    rewards = [WeightedReward("right", always(1.0)), WeightedReward("held", Held(), per_step=True)]
    (outcome,) = judged([group(tiny, "abc")], rewards, load_tokenizer(str(tiny)))[0]
    assert (outcome.total, outcome.components, len(outcome.steps)) == (1.0, {"right": 1.0, "held": 0.5}, 1)


def always(value: object) -> Any:
    def reward(prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any, **columns: Any) -> list[Any]:
        return [value] * len(completions)

    return reward


@pytest.mark.parametrize("value", [1.0, [3], [(0, 1.0)], [(99, 1.0)], [(1, "good")], [(1.5, 1.0)]], ids=str)
def test_steps_that_are_none_make_the_completion_invalid(tiny: Path, value: object) -> None:
    rewards = [WeightedReward("mine", always(value), per_step=True)]
    (outcome,) = judged([group(tiny, "abc")], rewards, load_tokenizer(str(tiny)))[0]
    assert outcome.reason == f"mine gave {value!r}, expected steps (end, value) with an end of 1 to 3 characters"


def test_a_step_that_is_not_a_number_makes_the_completion_invalid(tiny: Path) -> None:
    rewards = [
        WeightedReward("right", always(1.0)),
        WeightedReward("mine", always([(1, 1.0), (2, math.nan)]), per_step=True),
    ]
    (outcome,) = judged([group(tiny, "abc")], rewards, load_tokenizer(str(tiny)))[0]
    assert not outcome.valid
    assert outcome.reason == "mine gave a step nan"
    assert torch.tensor(outcome.total).isnan()
