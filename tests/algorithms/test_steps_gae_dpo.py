"""Step advantages, GAE and DPO against numbers worked by hand and sums written out from the definitions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.algorithms import dpo_loss, gae, group_advantages, step_advantages


def test_step_rewards_are_normalized_over_the_group_and_summed_to_the_end() -> None:
    # Steps 1, 0 and 1, 0, of two completions: mean 0.5, population deviation 0.5, so they count +1 and -1.
    advantages_NT = step_advantages([[1.0, 0.0], [1.0, 0.0]], [[1, 3], [0, 2]], [7, 7], [5, 3])
    expected = [[0.0, 0.0, -1.0, -1.0, 0.0], [0.0, -1.0, -1.0, 0.0, 0.0]]
    torch.testing.assert_close(advantages_NT, torch.tensor(expected), atol=5e-6, rtol=0)
    assert advantages_NT.dtype == torch.float32


def test_step_rewards_of_other_groups_and_invalid_ones_do_not_count() -> None:
    # Group 0: 3, 0, 0 -> mean 1, deviation sqrt(2), sample deviation sqrt(3). Group 1 is all equal.
    rewards = [[3.0, 0.0], [0.0, math.nan], [5.0, 5.0]]
    ends, groups, lengths = [[0, 1], [0, 1], [0, 1]], [0, 0, 1], [2, 2, 2]
    for std, deviation in (("population", math.sqrt(2)), ("sample", math.sqrt(3))):
        first, second, third = step_advantages(rewards, ends, groups, lengths, std=std).tolist()  # type: ignore[arg-type]
        assert first == pytest.approx([1 / deviation, -1 / deviation], abs=1e-5)
        assert second == pytest.approx([-1 / deviation, 0], abs=1e-5)
        assert third == [0.0, 0.0]


@given(st.lists(st.tuples(st.floats(-2, 2, width=16), st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=12))
def test_one_step_to_the_last_token_is_outcome_supervision(rows: list[tuple[float, int, int]]) -> None:
    rewards, groups, lengths = (list(column) for column in zip(*rows, strict=True))
    got = step_advantages([[reward] for reward in rewards], [[length - 1] for length in lengths], groups, lengths)
    expected = group_advantages(torch.tensor(rewards), torch.tensor(groups))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(got[row, :length], expected[row].expand(length), rtol=1e-5, atol=1e-5)
        assert not got[row, length:].any()


@pytest.mark.parametrize("ends", [[2], [-1], [0, 1]])
def test_a_step_that_ends_outside_its_completion_is_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="within its 2 tokens"):
        step_advantages([[1.0]], [ends], [0], [2])


def test_gae_by_hand() -> None:
    # gamma 0.5, lam 0.5: deltas 0 + 0.5*2 - 1 = 0 and 3 + 0 - 2 = 1; advantages 0 + 0.25*1 and 1.
    advantages, returns = gae(
        torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0, 2.0]]), torch.ones(1, 2), gamma=0.5, lam=0.5
    )
    assert advantages.tolist() == [[0.25, 1.0]]
    assert returns.tolist() == [[1.25, 3.0]]


def test_gae_is_the_sum_of_discounted_deltas_over_the_tokens_that_exist() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 6, 7, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 7, generator=generator) < 0.7
    advantages, returns = gae(rewards, values, mask, gamma=0.9, lam=0.8)
    for row in range(6):
        tokens = mask[row].nonzero()[:, 0].tolist()
        v = [values[row, t].item() for t in tokens] + [0.0]
        deltas = [rewards[row, t].item() + 0.9 * v[i + 1] - v[i] for i, t in enumerate(tokens)]
        for i, t in enumerate(tokens):
            expected = sum(0.72 ** (j - i) * deltas[j] for j in range(i, len(tokens)))
            assert advantages[row, t].item() == pytest.approx(expected)
            assert returns[row, t].item() == pytest.approx(expected + v[i])
    assert not advantages[~mask].any()
    assert not returns[~mask].any()
    with pytest.raises(ValueError, match="one shape"):
        gae(rewards, values[:, :2], mask)


def test_dpo_by_hand() -> None:
    same = torch.tensor([-4.0, -6.0])
    loss, stats = dpo_loss(same, same, same, same)
    assert loss.item() == pytest.approx(math.log(2))
    assert stats["accuracy"].item() == 0.0
    # Log-ratios +2 and -1 with beta 0.5: rewards 1 and -0.5, margin 1.5, loss log(1 + e^-1.5).
    loss, stats = dpo_loss(
        torch.tensor([-1.0]), torch.tensor([-5.0]), torch.tensor([-3.0]), torch.tensor([-4.0]), beta=0.5
    )
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1.5)))
    assert {name: value.item() for name, value in stats.items()} == {
        "accuracy": 1.0, "margin": 1.5, "chosen_reward": 1.0, "rejected_reward": -0.5,
    }  # fmt: skip


def test_dpo_gradient_is_that_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=index < 2) for index in range(4)]
    assert torch.autograd.gradcheck(lambda *tensors: dpo_loss(*tensors, beta=0.3)[0], inputs)
    with pytest.raises(ValueError, match="one shape"):
        dpo_loss(*inputs[:3], inputs[3][:2])


def test_dpo_stays_finite_far_from_the_reference() -> None:
    far = torch.tensor([-1e5])
    assert dpo_loss(far, 0 * far, 0 * far, 0 * far)[0].item() == pytest.approx(1e4)
    assert dpo_loss(0 * far, far, 0 * far, 0 * far)[0].item() == 0.0
