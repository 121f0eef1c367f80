"""What a reward function may return for a completion: a number of any kind, or nothing; all else is invalid."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from grouprl.rewards.calls import Invalid, call, run_in_thread


class Whole(float):
    """A number with a class of its own."""


def called(values: Any, *, per_step: bool = False) -> list[Any]:
    completions = ["abc"] * len(values)
    found = call(lambda **_: values, {"completions": completions}, completions, per_step=per_step, run=run_in_thread)
    return list(found.values)


@pytest.mark.parametrize(
    ("value", "paid"),
    [
        (True, 1.0), (np.bool_(True), 1.0), (np.float16(0.5), 0.5), (np.longdouble("0.25"), 0.25), (np.int8(-3), -3.0),
        (np.array(2.0), 2.0), (np.array([2.0]), 2.0), (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor([0.5]), 0.5), (torch.tensor(3), 3.0), (Fraction(1, 4), 0.25), (Whole(0.75), 0.75), (None, None),
    ],
    ids=repr,
)  # fmt: skip
def test_a_number_of_any_kind_is_a_reward(value: Any, paid: float | None) -> None:
    found = called([1, value])
    assert found == [1.0, paid]
    assert type(found[1]) is type(paid)


NO_NUMBERS = [
    np.complex128(1 + 5j), np.complex64(1), 1 + 0j, torch.tensor(1 + 5j), torch.tensor(1 + 0j), "1", b"1",
    np.str_("1"), np.bytes_(b"1"), np.array("1"), np.timedelta64(5, "s"), np.timedelta64(5, "ns"),
    np.datetime64(5, "ns"), timedelta(seconds=5), Decimal("0.5"), [1.0], (1.0,), {"reward": 1.0}, {1.0},
    np.array([1.0, 2.0]), torch.tensor([1.0, 2.0]), torch.tensor([]), object(), 10**400, 10**9000, Fraction(10**400),
    math.nan, np.float32("inf"), torch.tensor(math.nan), lambda: 1.0,
]  # fmt: skip


@pytest.mark.parametrize("value", NO_NUMBERS, ids=[f"{n} {type(value).__name__}" for n, value in enumerate(NO_NUMBERS)])
def test_what_is_no_number_is_invalid_and_the_others_are_paid(value: Any) -> None:
    before, found, after = called([1, value, 2])
    assert (before, after) == (1.0, 2.0)
    assert isinstance(found, Invalid)
    assert found.reason.startswith("gave ")
    (step,) = called([[(1, value)]], per_step=True)
    assert isinstance(step, Invalid)


@pytest.mark.parametrize(
    "values", [np.array([5], "m8[ns]"), np.array([5], "M8[s]"), np.array([1 + 5j]), np.array(["1"])]
)
def test_an_array_of_what_is_no_number_is_invalid(values: Any) -> None:
    assert isinstance(called(values)[0], Invalid)


def test_a_step_ends_at_a_number_of_characters() -> None:
    assert called([[(2, np.float32(0.5)), (3, 1)]], per_step=True) == [((2, 0.5), (3, 1.0))]
    assert isinstance(called([[(True, 1.0)]], per_step=True)[0], Invalid)
