"""Credit from the prefix tree: numbers worked by hand, a slow reading of the definition, and exact expectations."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grouprl.algorithms import group_advantages, tree_advantages
from tabular import ENDING, FIXED, LOGITS, RIGHT_OR_WRONG, World, expected_update, gradient, groups

PLAIN: dict[str, Any] = {"scale": "none"}
OTHERS: dict[str, Any] = {"scale": "none", "baseline": "leave_one_out"}
WORLDS = {"fixed": FIXED, "ending": ENDING, "right_or_wrong": RIGHT_OR_WRONG}


def advantages(completions: list[str], rewards: list[float], ids: list[int] | None = None, **options: Any) -> Tensor:
    """Of completions whose tokens are letters."""
    longest = max(map(len, completions))
    edges = torch.tensor([[*map(ord, text), *[0] * (longest - len(text))] for text in completions])
    mask = torch.arange(longest) < torch.tensor([*map(len, completions)])[:, None]
    return tree_advantages(torch.tensor(rewards), torch.tensor(ids or [0] * len(rewards)), edges, mask, **options)


def rows(found: Tensor) -> list[list[float]]:
    return [[round(value, 4) + 0.0 for value in row] for row in found.tolist()]


def test_the_value_of_a_prefix_is_the_mean_of_those_that_share_it() -> None:
    """ab and ac get 1, ad and x 0: V is 1/2 at first, 2/3 after a; GRPO's +-0.5 plus the difference at each token."""
    texts, rewards = ["ab!", "ac!", "ad!", "x"], [1.0, 1.0, 0.0, 0.0]
    assert rows(advantages(texts, rewards, **PLAIN)) == [
        [0.6667, 0.8333, 0.5],
        [0.6667, 0.8333, 0.5],
        [-0.3333, -1.1667, -0.5],
        [-1.0, 0.0, 0.0],
    ]
    assert rows(advantages(texts, rewards, eps=0.0))[0] == [1.3333, 1.6667, 1.0]  # the deviation is 1/2
    # Of the others: 1/3, 1/3, 2/3, 2/3 at first; after a 1/2, 1/2, 1; from there on nobody shares more.
    assert rows(advantages(texts, rewards, **OTHERS)) == [
        [1.0, 1.1667, 1.1667],
        [1.0, 1.1667, 1.1667],
        [-0.6667, -1.6667, -1.6667],
        [-1.3333, 0.0, 0.0],
    ]


def test_whoever_ends_does_not_share_with_those_that_go_on() -> None:
    """After a the first has its reward; of the two that continue, one is right: 2/3 before, 1/2 after."""
    found = advantages(["a", "ab", "ac"], [1.0, 1.0, 0.0], **PLAIN)
    assert rows(found) == [[0.6667, 0.0], [0.1667, 0.8333], [-0.8333, -1.1667]]


def test_invalid_completions_and_other_groups_are_in_no_value() -> None:
    texts, rewards = ["ab", "a", "ac", "ab", "ac"], [1.0, 5.0, 0.0, math.nan, math.nan]
    found = advantages(texts, rewards, [3, 1, 3, 3, 1], **PLAIN)
    assert rows(found) == [[0.5, 1.0], [0.0, 0.0], [-0.5, -1.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("options", [{}, PLAIN, OTHERS, {"scale": "batch_std"}])
def test_a_group_without_signal_gets_exactly_0(options: dict[str, Any]) -> None:
    found = advantages(["ab", "ac", "d", "ab", "ac"], [0.7, 0.7, 0.7, 1.0, 0.0], [0, 0, 0, 1, 1], **options)
    assert not found[:3].any()
    assert found[3:].all()


def slow(texts: list[str], rewards: list[float], ids: list[int], baseline: str) -> list[list[float]]:
    """The definition, token by token, over texts that no other text of their group begins with."""
    found = []
    for one, (text, reward, group) in enumerate(zip(texts, rewards, ids, strict=True)):
        members = [n for n in range(len(texts)) if ids[n] == group]

        def value(beginning: str, members: list[int] = members) -> float | None:
            those = [rewards[n] for n in members if texts[n].startswith(beginning)]
            return sum(those) / len(those) if those else None

        def of_others(beginning: str, members: list[int] = members, one: int = one) -> float:
            others = value(beginning, [n for n in members if n != one])
            return of_others(beginning[:-1], members, one) if others is None else others

        before: Callable[[str], Any] = value if baseline == "mean" else of_others
        found.append([reward - before("") + value(text[: t + 1]) - before(text[:t]) for t in range(len(text))])
    return found


ROWS = st.lists(st.tuples(st.text("ab", max_size=4), st.integers(-8, 8), st.integers(0, 2)), min_size=1, max_size=9)


@given(ROWS, st.sampled_from(["mean", "leave_one_out"]))
def test_it_is_the_definition(drawn: list[tuple[str, int, int]], baseline: Any) -> None:
    texts, ids = [text + "." for text, *_ in drawn], [group for *_, group in drawn]
    rewards = [reward / 4 for _, reward, _ in drawn]
    found = advantages(texts, rewards, ids, baseline=baseline, scale="none")
    signal = [len({r for r, i in zip(rewards, ids, strict=True) if i == group}) > 1 for group in ids]
    for row, text, has_signal in zip(found, texts, signal, strict=True):
        assert not row[len(text) :].any()
        assert has_signal or not row.any()
    if all(signal):
        for row, expected in zip(found.tolist(), slow(texts, rewards, ids, baseline), strict=True):
            assert row[: len(expected)] == pytest.approx(expected, abs=1e-5)


def test_completions_that_share_nothing_are_compared_as_in_rloo() -> None:
    rewards = [1.0, 0.25, 0.0]
    found = advantages(["ab", "cd", "ef"], rewards, **OTHERS)
    alone = group_advantages(torch.tensor(rewards), torch.zeros(3), scale="none", baseline="leave_one_out")
    torch.testing.assert_close(found, 2 * alone[:, None].expand(3, 2))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="baseline: got 'none', expected one of mean, leave_one_out"):
        advantages(["a"], [1.0], baseline="none")
    with pytest.raises(ValueError, match=r"edges and mask of one shape \[N, T\] and rewards \[N\], got \(1, 2\)"):
        tree_advantages(torch.ones(1), torch.ones(1), torch.ones(1, 2), torch.ones(1, 3))


def expectation(world: World, size: int, **options: Any) -> Tensor:
    """[13, 3] exact expected gradient over all groups of a size; the logits of a row are those of one prefix."""
    rows_N = groups(len(world.completions), size)[0].flatten()
    of = partial(tree_advantages, edges_NT=world.token_YT[rows_N], mask_NT=world.mask_YT[rows_N], **options)
    return expected_update(world, size, of)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("size", [2, 3])
def test_with_means_of_the_others_the_policy_gradient_is_expected_twice(name: str, size: int) -> None:
    truth = gradient(WORLDS[name].expected_reward)
    torch.testing.assert_close(expectation(WORLDS[name], size, **OTHERS), 2 * truth, atol=3e-8, rtol=0)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("size", [2, 3])
def test_the_papers_form_weighs_a_prefix_by_how_often_it_is_shared(name: str, size: int) -> None:
    """2 - 1/G - (1 - (1 - p)^G) / (G p) of the gradient at a prefix that a completion continues with chance p."""
    world = WORLDS[name]
    visits_K = torch.zeros(13, dtype=torch.float64)
    for chance, mask_T, prefix_T in zip(world.chances(LOGITS), world.mask_YT, world.prefix_YT, strict=True):
        visits_K[prefix_T[mask_T]] += chance
    factor_K = 2 - 1 / size - (1 - (1 - visits_K) ** size) / (size * visits_K)
    assert float(factor_K[0]) == pytest.approx(2 - 2 / size)
    expected = torch.where(visits_K > 0, factor_K, 0.0)[:, None] * gradient(world.expected_reward)
    torch.testing.assert_close(expectation(world, size, **PLAIN), expected, atol=3e-8, rtol=0)
