"""Gradients against central differences in float64: every combination of options, and any point off the kinks."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from grouprl.algorithms import kl_estimate, policy_loss, token_weights, value_loss

CLIP_LOW, CLIP_HIGH, DUAL = 0.2, 0.3, 1.8
SMOOTH, RATIOS = ["clip", "plain", "sapo", "gmpo"], ["token", "sequence"]
SURROGATES = [*SMOOTH, "cispo", "vespo"]
AGGREGATES, KINDS = ["sequence_mean", "token_mean", "prompt_mean", "constant"], ["k1", "k2", "k3"]
GROUPS = torch.tensor([0, 1, 0])

# Token ratios on every side of 0.8, 1.3 and 1.8 under advantages of both signs; sequence ratios 1.98, 0.69 and 1.05.
RATIO = torch.tensor([[2.5, 1.5, 2.0, 2.05], [0.5, 0.6, 1.1, 0.0], [0.9, 1.2, 0.0, 0.0]], dtype=torch.float64)
MASK = RATIO > 0
RATIO = RATIO + 1.0 * ~MASK
ADVANTAGES = torch.tensor([[-1.0, -0.5, -2.0, 0.7], [1.5, -0.8, -0.3, 0.0], [0.4, -1.2, 0.0, 0.0]], dtype=torch.float64)
LOGPROBS = -1.5 + (torch.arange(12, dtype=torch.float64).view(3, 4) ** 2).sin()
REFERENCE = LOGPROBS + 0.6 * (torch.arange(12, dtype=torch.float64).view(3, 4) ** 3).cos()
OLD = LOGPROBS - RATIO.log()
LOSS = {"clip_low": CLIP_LOW, "clip_high": CLIP_HIGH, "ref_logprobs_NT": REFERENCE, "mask_NT": MASK}


def central_differences(function: Callable[[Tensor], float], at: Tensor, step: float = 1e-6) -> Tensor:
    slopes = torch.zeros_like(at)
    for index in itertools.product(*map(range, at.shape)):
        moved = torch.zeros_like(at)
        moved[index] = step
        slopes[index] = (function(at + moved) - function(at - moved)) / (2 * step)
    return slopes


def assert_gradient(loss: Callable[[Tensor], Tensor], at: Tensor, reference: Callable[[Tensor], float]) -> None:
    leaf = at.clone().requires_grad_()
    (got,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(got, central_differences(reference, at), atol=2e-9, rtol=1e-7)


def weights(aggregate: str) -> Tensor:
    return token_weights(MASK, aggregate=aggregate, constant_length=5, group_ids_N=GROUPS).double()


@pytest.mark.parametrize("kl", KINDS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize(("surrogate", "ratio"), [*(("cispo", ratio) for ratio in RATIOS), ("vespo", "token")])
def test_advantages_of_tokens_with_cispo_and_vespo(surrogate: str, ratio: str, aggregate: str, kl: str):
    """Their weights are constants: in the differences they stay as they were, worked out token by token."""
    held = torch.zeros_like(LOGPROBS)
    for row, length in enumerate(MASK.sum(1).tolist()):
        ratios = RATIO[row, :length].tolist()
        whole = math.prod(ratios) ** (1 / length)
        for t, own in enumerate(ratios):
            held[row, t] = min(max({"token": own, "sequence": whole}[ratio], 1 - CLIP_LOW), 1 + CLIP_HIGH)
            if surrogate == "vespo":
                k, decay = (2, 3) if ADVANTAGES[row, t] >= 0 else (3, 2)
                held[row, t] = math.prod(ratios) ** k * math.exp(decay * (1 - math.prod(ratios)))

    def loss(logprobs: Tensor) -> Tensor:
        options = {"surrogate": surrogate, "ratio": ratio, "kl_coef": 0.4, "kl": kl, **LOSS}
        return policy_loss(logprobs, OLD, ADVANTAGES, weights(aggregate), **options)[0]

    def reference(at: Tensor) -> float:
        anchor = kl_estimate(at, REFERENCE, kind=kl)
        return float((weights(aggregate) * (0.4 * anchor - held * ADVANTAGES * at)).sum())

    assert_gradient(loss, LOGPROBS, reference)


POINT = st.lists(st.floats(-1.2, 1.2), min_size=12, max_size=12)


@given(
    POINT,
    POINT,
    POINT,
    st.fixed_dictionaries(
        {
            "surrogate": st.sampled_from(SMOOTH),
            "ratio": st.sampled_from(RATIOS),
            "dual_clip": st.sampled_from([None, DUAL]),
            "drift_coef": st.sampled_from([0.0, 0.3]),
            "kl": st.sampled_from(KINDS),
        }
    ),
    st.sampled_from(AGGREGATES),
)
def test_any_point_in_any_direction(
    logs: list[float], advantages: list[float], direction: list[float], options: dict[str, Any], aggregate: str
):
    log_ratio, advantages_NT, towards = (
        torch.tensor(values, dtype=torch.float64).view(3, 4) for values in (logs, advantages, direction)
    )
    means_N = (log_ratio * MASK).sum(1) / MASK.sum(1)
    ratios = torch.cat([log_ratio[MASK], means_N]).exp()
    kinks = torch.tensor([1 - CLIP_LOW, 1 + CLIP_HIGH, DUAL], dtype=torch.float64)
    assume((ratios[:, None] - kinks).abs().min() > 1e-3)

    def loss(logprobs: Tensor) -> Tensor:
        old, own = LOGPROBS - log_ratio, weights(aggregate)
        return policy_loss(logprobs, old, advantages_NT, own, kl_coef=0.4, **options, **LOSS)[0]

    leaf = LOGPROBS.clone().requires_grad_()
    (got,) = torch.autograd.grad(loss(leaf), leaf)
    slope = float(loss(LOGPROBS + 1e-5 * towards) - loss(LOGPROBS - 1e-5 * towards)) / 2e-5
    assert float((got * towards).sum()) == pytest.approx(slope, abs=1e-8)
    assert (got[~MASK] == 0).all()


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_any_split_of_the_batch_adds_up_to_its_gradient(aggregate: str, ratio: str, surrogate: str):
    def part(rows: list[int]) -> Tensor:
        leaf = LOGPROBS.clone().requires_grad_()
        options = {"surrogate": surrogate, "ratio": ratio, "kl_coef": 0.4, "drift_coef": 0.3}
        inputs = [tensor[rows] for tensor in (leaf, OLD, ADVANTAGES, weights(aggregate))]
        loss, _ = policy_loss(*inputs, ref_logprobs_NT=REFERENCE[rows], mask_NT=MASK[rows], **options)
        return torch.autograd.grad(loss, leaf)[0]

    for split in ([[0], [1], [2]], [[2, 0], [1]]):
        torch.testing.assert_close(sum(map(part, split)), part([0, 1, 2]), atol=1e-15, rtol=0)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss(clip: float | None):
    values, returns = LOGPROBS, REFERENCE
    # Moves within, above and below the clip of 0.2, towards the return and away from it.
    old = values - torch.tensor([0.1, -0.1, 0.5, -0.5], dtype=torch.float64)

    def loss(at: Tensor) -> Tensor:
        return value_loss(at, old, returns, weights("token_mean"), clip=clip)[0]

    assert_gradient(loss, values, lambda at: float(loss(at)))
