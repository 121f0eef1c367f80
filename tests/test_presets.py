"""Presets against numbers that the libraries' own code printed; docs/presets.md says how they were run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grouprl.algorithm import Algorithm
from grouprl.algorithms import group_advantages, kl_estimate, policy_loss, token_advantages, token_weights
from grouprl.algorithms.named import NAMED

# Three groups of three, one of them of equal rewards; log-probs far enough apart for every bound to be met.
REWARDS_N = torch.tensor([1.0, 0.25, 0.0, 2.0, 0.25, 1.0, 0.5, 0.5, 0.5])
GROUPS_N = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
POLICY = [
    [-0.5, -1.2, -0.3, -2.0],
    [-0.9, -0.4],
    [-1.1, -0.7, -1.5],
    [-0.2],
    [-1.3, -0.6, -0.8, -0.1],
    [-2.2, -0.35],
    [-0.45, -1.6, -0.25],
    [-0.15, -0.95],
    [-1.0, -0.55, -1.75, -0.65],
]
OLD = [
    [-0.8, -1.25, -0.2, -1.6],
    [-0.85, -0.5],
    [-0.7, -2.2, -1.45],
    [-0.6],
    [-1.2, -1.0, -0.75, -0.3],
    [-2.0, -0.4],
    [-0.5, -1.5, -0.3],
    [-0.25, -0.9],
    [-1.05, -0.5, -1.7, -0.75],
]
REFERENCE = [
    [-0.6, -1.0, -0.35, -2.3],
    [-1.0, -0.3],
    [-1.3, -0.65, -1.2],
    [-0.25],
    [-2.8, -0.75, -0.9, -0.2],
    [-2.0, -0.5],
    [-0.4, -1.8, -0.2],
    [-0.3, -0.8],
    [-0.9, -0.6, -1.6, -0.7],
]

# name: advantages, loss, norm of the loss's gradient in the log-probs
PRINTED = {
    # trl 1.16.0, GRPOTrainer with GRPOConfig's defaults: advantages from _generate_and_score_completions, loss from
    # _compute_loss, completions and log-probs replaced by the ones above.
    "trl": (
        [1.120681763, -0.320194751, -0.800486922, 1.043954849, -0.949049890, -0.094905034, 0.0, 0.0, 0.0],
        0.184832990,
        0.185754314,
    ),
    # verl 0.9.1: core_algos.compute_grpo_outcome_advantage, then workers/utils/losses.ppo_loss with
    # _generated_ppo_trainer.yaml and use_kl_loss=True.
    "verl": (
        [1.120895028, -0.320255667, -0.800639212, 1.044072509, -0.949156940, -0.094915733, 0.0, 0.0, 0.0],
        0.137445658,
        0.117977373,
    ),
    # openrlhf 0.11.2: RemoteExperienceMaker.compute_advantages_and_returns, then PolicyLoss, compute_approx_kl and
    # aggregate_loss as in ActorPPOTrainer.training_step; --algo.advantage.estimator group_norm --algo.kl.use_loss
    # --algo.kl.estimator k3.
    "openrlhf": (
        [1.120897174, -0.320256293, -0.800640762, 1.044073701, -0.949158013, -0.094915845, 0.0, 0.0, 0.0],
        0.185253590,
        0.185840160,
    ),
}


def padded(rows: list[list[float]]) -> Tensor:
    return torch.tensor([row + [0.0] * (4 - len(row)) for row in rows])


MASK_NT = torch.tensor([[1] * len(row) + [0] * (4 - len(row)) for row in POLICY])


def advantages_of(algorithm: Algorithm, rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    assert algorithm.baseline == "mean"
    return group_advantages(
        rewards_N, groups_N, baseline="mean", scale=algorithm.scale, std=algorithm.std, eps=algorithm.eps
    )


def loss_and_norm(algorithm: Algorithm, advantages: Tensor, *, kl_coef: float) -> tuple[float, float]:
    logprobs_NT = padded(POLICY).requires_grad_()
    loss, _ = policy_loss(
        logprobs_NT,
        padded(OLD),
        advantages,
        token_weights(MASK_NT, aggregate=algorithm.aggregate),
        surrogate=algorithm.surrogate,
        ratio=algorithm.ratio,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        dual_clip=algorithm.dual_clip,
        ref_logprobs_NT=padded(REFERENCE),
        kl_coef=kl_coef,
        kl=algorithm.kl,
    )
    (gradient_NT,) = torch.autograd.grad(loss, logprobs_NT)
    return float(loss.detach()), float(gradient_NT.norm())


@pytest.mark.parametrize("name", PRINTED)
def test_a_preset_gives_the_numbers_that_the_library_prints(name: str) -> None:
    algorithm, (advantages, loss, norm) = NAMED[name], PRINTED[name]
    advantages_N = advantages_of(algorithm, REWARDS_N, GROUPS_N)
    assert algorithm.kl_in == "loss"
    got = loss_and_norm(algorithm, advantages_N, kl_coef=algorithm.kl_coef)
    assert advantages_N.tolist() == pytest.approx(advantages, abs=1e-6)
    assert got == pytest.approx((loss, norm), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "kl_coef", "printed"),
    [
        ("verl", 0.0, (0.137406126, 0.117966525)),  # use_kl_loss left at False
        ("trl", 0.001, (0.184872538, 0.185759619)),  # beta=0.001, use_bias_correction_kl=False
    ],
)
def test_a_preset_with_another_kl_coefficient(name: str, kl_coef: float, printed: tuple[float, float]) -> None:
    advantages_N = advantages_of(NAMED[name], REWARDS_N, GROUPS_N)
    assert loss_and_norm(NAMED[name], advantages_N, kl_coef=kl_coef) == pytest.approx(printed, abs=1e-6)


def test_openrlhf_with_its_kl_in_the_reward_of_every_token() -> None:
    # openrlhf 0.11.2 as above, without the two kl switches: the group's deviation divides the reward alone, then
    # every token loses the k1 of itself and of the tokens after it.
    printed = [
        *(1.116897225, 1.114897251, 1.112397194, 1.113897204, -0.319756299, -0.318256289),
        *(-0.788640738, -0.782640755, -0.798140764, 1.047573686, -0.963158011, -0.947158039, -0.949658036),
        *(-0.948158026, -0.095915847, -0.095915847, -0.000999999, -0.001999999, 0.001, 0.000499999, 0.001),
        *(0.002, 0.0005, 0.0015, 0.0005),
    ]
    algorithm = NAMED["openrlhf"]
    rewards_NT = -algorithm.kl_coef * MASK_NT * kl_estimate(padded(OLD), padded(REFERENCE), kind="k1")
    rewards_NT[torch.arange(9), MASK_NT.sum(1) - 1] += advantages_of(algorithm, REWARDS_N, GROUPS_N)
    advantages_NT, _ = token_advantages(rewards_NT, MASK_NT, centre=False, normalise=False)
    assert advantages_NT[MASK_NT.bool()].tolist() == pytest.approx(printed, abs=1e-6)
    got = loss_and_norm(algorithm, advantages_NT, kl_coef=0.0)
    assert got == pytest.approx((0.182078794, 0.183169901), abs=1e-6)


@pytest.mark.parametrize("name", PRINTED)
def test_equal_rewards_give_exactly_zero_where_the_libraries_leak(name: str) -> None:
    # Eight rewards of 0.7: trl 1.16.0 prints 0.000596, verl 0.9.1 0.056, openrlhf 0.11.2 0.92.
    equal_N = torch.full((8,), 0.7)
    assert advantages_of(NAMED[name], equal_N, torch.zeros(8, dtype=torch.long)).tolist() == [0.0] * 8
