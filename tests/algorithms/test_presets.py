"""Presets against numbers that the libraries' own code printed.

They come from `pip install trl==1.16.0 verl==0.9.1 openrlhf==0.11.2` and the rewards and log-probs of this file. For
TRL, these replace the generation and the forward pass of `GRPOTrainer`; for verl, its estimator and `ppo_loss` run with
the defaults of its YAML, or the functions that a row names; for OpenRLHF, `compute_approx_kl`,
`compute_advantages_and_returns`, `PolicyLoss` and `aggregate_loss` run with the defaults of its argument parser; for
prime-rl, which no index has, `default_loss_fn` of its repository (559b44772). Gradients are with respect to the
log-probs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.learner import PolicyEvaluation, assign_credit
from grouprl.types import Batch, RewardOutcome, Sampling
from variants import variant

# Three groups of three, one of them of equal rewards; log-probs far enough apart for every bound to be met.
REWARDS = [1.0, 0.25, 0.0, 2.0, 0.25, 1.0, 0.5, 0.5, 0.5]
POLICY = [
    [-0.5, -1.2, -0.3, -2.0], [-0.9, -0.4], [-1.1, -0.7, -1.5], [-0.2], [-1.3, -0.6, -0.8, -0.1], [-2.2, -0.35],
    [-0.45, -1.6, -0.25], [-0.15, -0.95], [-1.0, -0.55, -1.75, -0.65],
]  # fmt: skip
OLD = [
    [-0.8, -1.25, -0.2, -1.6], [-0.85, -0.5], [-0.7, -2.2, -1.45], [-0.6], [-1.2, -1.0, -0.75, -0.3], [-2.0, -0.4],
    [-0.5, -1.5, -0.3], [-0.25, -0.9], [-1.05, -0.5, -1.7, -0.75],
]  # fmt: skip
REFERENCE = [
    [-0.6, -1.0, -0.35, -2.3], [-1.0, -0.3], [-1.3, -0.65, -1.2], [-0.25], [-2.8, -0.75, -0.9, -0.2], [-2.0, -0.5],
    [-0.4, -1.8, -0.2], [-0.3, -0.8], [-0.9, -0.6, -1.6, -0.7],
]  # fmt: skip

TRL = [1.120681763, -0.320194751, -0.800486922, 1.043954849, -0.949049890, -0.094905034, 0.0, 0.0, 0.0]
LESS_MEAN = [0.583333373, -0.166666657, -0.416666657, 0.916666627, -0.833333373, -0.083333373, 0.0, 0.0, 0.0]
VERL = [1.120895028, -0.320255667, -0.800639212, 1.044072509, -0.949156940, -0.094915733, 0.0, 0.0, 0.0]
# name: algorithm, advantages of completions or of their tokens, loss, norm of the loss's gradient in the log-probs
PRINTED = {
    # trl 1.16.0, GRPOTrainer with GRPOConfig's defaults: advantages from _generate_and_score_completions, loss from
    # _compute_loss, completions and log-probs replaced by the ones above.
    "trl": (NAMED["trl"], TRL, 0.184832990, 0.185754314),
    # beta=0.001, use_bias_correction_kl=False
    "trl with a KL": (variant("trl", kl_coef=0.001), TRL, 0.184872538, 0.185759619),
    # beta=0.04 and everything else the default: use_bias_correction_kl=True
    "trl with its unbiased KL": (variant("trl", kl_coef=0.04, kl_unbiased=True), TRL, 0.186283931, 0.186022744),
    # off_policy_mask_threshold=0.01
    "trl without what is far off-policy": (variant("trl", off_policy_delta=0.01), TRL, 0.177734077, 0.185685411),
    # loss_type="sapo"
    "sapo": (replace(NAMED["sapo"], advantage=NAMED["trl"].advantage), TRL, -0.020552712, 0.190034568),
    # loss_type="luspo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4; over max_tokens
    "luspo": (replace(NAMED["luspo"], advantage=NAMED["trl"].advantage), TRL, 0.348922342 / 4, 0.404591501 / 4),
    # loss_type="vespo"; then with vespo_k_pos=1.5, vespo_lambda_pos=0.5, vespo_k_neg=0.25, vespo_lambda_neg=4.0
    "vespo": (replace(NAMED["vespo"], advantage=NAMED["trl"].advantage), TRL, -0.011235628, 0.144337818),
    "vespo with other powers": (
        variant("trl", surrogate="vespo", k_pos=1.5, lambda_pos=0.5, k_neg=0.25, lambda_neg=4.0),
        TRL,
        0.123067588,
        0.099059448,
    ),
    # scale_rewards="batch"
    "lite_ppo": (
        variant("lite_ppo", std="sample", eps=1e-4),
        [0.972904980, -0.277972817, -0.694932044, 1.528850555, -1.389864206, -0.138986483, 0.0, 0.0, 0.0],
        0.238252386,
        0.192217484,
    ),
    # loss_type="cispo", epsilon_high=5.0: the surrogate alone
    "scale_rl": (
        variant(replace(NAMED["trl"], objective=NAMED["scale_rl"].objective), aggregate="token_mean"),
        TRL,
        -0.135236815,
        0.206173792,
    ),
    # trl.experimental.gmpo.GMPOTrainer with epsilon=-log(0.67), epsilon_high=log(1.49)
    "gmpo": (replace(NAMED["gmpo"], advantage=NAMED["trl"].advantage), TRL, -0.002286525, 0.114459306),
    # verl 0.9.1: core_algos.compute_grpo_outcome_advantage, then workers/utils/losses.ppo_loss with
    # _generated_ppo_trainer.yaml and use_kl_loss=True.
    "verl": (NAMED["verl"], VERL, 0.137445658, 0.117977373),
    # use_kl_loss left at False
    "verl without a KL": (variant("verl", kl_coef=0.0), VERL, 0.137406126, 0.117966525),
    # core_algos.compute_opo_outcome_advantage and compute_grpo_passk_outcome_advantage, with
    # norm_adv_by_std_in_grpo=False and True, then compute_policy_loss_vanilla
    "opo": (
        replace(NAMED["verl"], advantage=NAMED["opo"].advantage, kl=None),
        [0.5, -0.25, -0.5, 1.285714269, -0.464285731, 0.285714269, 0.0, 0.0, 0.0],
        0.040832609,
        0.060268722,
    ),
    "pass_at_k": (
        replace(NAMED["verl"], advantage=NAMED["pass_at_k"].advantage, kl=None),
        [0.75, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        -0.162792861,
        0.046215880,
    ),
    "pass_at_k over the deviation": (
        variant("verl", baseline="best_other", kl_coef=0.0),
        [1.441150546, 0.0, 0.0, 1.138988256, 0.0, 0.0, 0.0, 0.0, 0.0],
        -0.275249839,
        0.088805385,
    ),
    # compute_reinforce_plus_plus_baseline_outcome_advantage, compute_policy_loss_vanilla, kl_penalty "mse" at 0.001
    "rf_baseline": (
        variant("rf_baseline", dual_clip=3.0),
        [
            *(1.379910231, 1.379910231, 1.379910231, 1.379910231, -0.196129337, -0.196129337),
            *(-0.721475840, -0.721475840, -0.721475840, 2.080372095, -1.597053528, -1.597053528, -1.597053528),
            *(-1.597053528, -0.021013934, -0.021013934, *[0.154101655] * 9),
        ],
        0.079476669,
        0.175161586,
    ),
    # compute_gpg_outcome_advantage, compute_policy_loss_gpg; its factor is 9 / 8, completions over rewards other than 0
    "gpg": (variant("gpg", aggregate="token_mean"), LESS_MEAN, -0.072937496 / 1.125, 0.106198512 / 1.125),
    # default_loss_fn over the number of tokens; then with kl_tau=0.5, and with a mask at 0.1
    "prime_rl": (NAMED["prime_rl"], LESS_MEAN, 0.181318983, 0.120082512),
    "prime_rl with a larger drift": (variant("prime_rl", drift_coef=0.5), LESS_MEAN, 0.244143084, 0.172254592),
    "prime_rl with a narrower mask": (variant("prime_rl", divergence_tv=0.1), LESS_MEAN, 0.201643690, 0.115348086),
    # openrlhf 0.11.2: RemoteExperienceMaker.compute_advantages_and_returns, then PolicyLoss and aggregate_loss as in
    # ActorPPOTrainer.training_step; --algo.advantage.estimator group_norm. The group's deviation divides the reward
    # alone, then every token loses the k1 of itself and of the tokens after it.
    "openrlhf": (
        NAMED["openrlhf"],
        [
            *(1.116897225, 1.114897251, 1.112397194, 1.113897204, -0.319756299, -0.318256289),
            *(-0.788640738, -0.782640755, -0.798140764, 1.047573686, -0.963158011, -0.947158039, -0.949658036),
            *(-0.948158026, -0.095915847, -0.095915847, -0.000999999, -0.001999999, 0.001, 0.000499999, 0.001),
            *(0.002, 0.0005, 0.0015, 0.0005),
        ],
        0.182078794,
        0.183169901,
    ),
    # with --algo.kl.use_loss --algo.kl.estimator k3, and compute_approx_kl in the loss
    "openrlhf with its KL in the loss": (
        variant("openrlhf", credit="completion", kl="k3", kl_in="loss"),
        [1.120897174, -0.320256293, -0.800640762, 1.044073701, -0.949158013, -0.094915845, 0.0, 0.0, 0.0],
        0.185253590,
        0.185840160,
    ),
}


def padded(rows: list[list[float]]) -> Tensor:
    return torch.tensor([row + [0.0] * (4 - len(row)) for row in rows])


LENGTHS = [len(row) for row in POLICY]
MASK_NT = torch.arange(4) < torch.tensor(LENGTHS)[:, None]


def batch_of(groups: list[int], mask_NT: Tensor, old_NT: Tensor) -> Batch:
    return Batch(
        prompts=tuple((1,) for _ in set(groups)),
        group_of_N=tuple(groups),
        token_ids_NT=torch.zeros(mask_NT.shape, dtype=torch.long),
        mask_NT=mask_NT,
        trained_NT=mask_NT,
        old_logprobs_NT=old_NT,
        sampling=Sampling(),
    )


def advantages_of(algorithm: Algorithm, rewards: list[float], batch: Batch, reference_NT: Tensor) -> Tensor:
    outcomes = [RewardOutcome(reward, {"reward": reward}) for reward in rewards]
    seen = PolicyEvaluation(reference_NT=reference_NT)
    credit = assign_credit(outcomes, {"reward": 1.0}, batch, seen, algorithm, kl_coef=algorithm.kl_coef)
    return credit.advantages_NT


def loss_and_norm(algorithm: Algorithm, advantages_NT: Tensor) -> tuple[float, float]:
    logprobs_NT = padded(POLICY).requires_grad_()
    weights_NT = algorithm.objective.weights(MASK_NT, max_tokens=4)
    tokens = TokenGrid(
        logprobs_NT, padded(OLD), advantages_NT, weights_NT, weights_NT > 0, reference_NT=padded(REFERENCE)
    )
    loss, _ = algorithm.objective.loss(tokens, algorithm.kl, algorithm.kl_coef if algorithm.has_kl_loss else 0.0)
    (gradient_NT,) = torch.autograd.grad(loss, logprobs_NT)
    return float(loss.detach()), float(gradient_NT.norm())


@pytest.mark.parametrize("name", PRINTED)
def test_a_preset_gives_the_numbers_that_the_library_prints(name: str) -> None:
    algorithm, printed, loss, norm = PRINTED[name]
    batch = batch_of([0, 0, 0, 1, 1, 1, 2, 2, 2], MASK_NT, padded(OLD))
    advantages_NT = advantages_of(algorithm, REWARDS, batch, padded(REFERENCE))
    by_token = advantages_NT[MASK_NT].tolist()
    if algorithm.advantage.credit == "completion":
        printed = [advantage for advantage, length in zip(printed, LENGTHS, strict=True) for _ in range(length)]
    assert by_token == pytest.approx(printed, abs=1e-6)
    assert loss_and_norm(algorithm, advantages_NT) == pytest.approx((loss, norm), abs=1e-6)


def test_gpg_leaves_groups_without_signal_out_as_verl_rescales_the_others() -> None:
    """Rewards 1, 0.5, 0.25, and three of 0, of completions of 9 tokens a group: verl's factor is 2, the paper's too."""
    gpg, kept = NAMED["gpg"], torch.tensor([0, 1, 2])
    assert gpg.group_filter.kept([[1.0, 0.5, 0.25], [0.0, 0.0, 0.0]]) == [True, False]
    logprobs_NT = padded(POLICY).requires_grad_()
    mask_nT, groups_n = MASK_NT[kept], torch.zeros(3, dtype=torch.long)
    rewards_n = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    advantages_n = gpg.advantage.compared(rewards_n, groups_n).advantages(rewards_n)
    weights_nT = gpg.objective.weights_of_groups(mask_nT, groups_n, max_tokens=4)
    tokens = TokenGrid(logprobs_NT[kept], padded(OLD)[kept], advantages_n[:, None] * mask_nT, weights_nT, mask_nT)
    loss, _ = gpg.objective.loss(tokens)
    (gradient_NT,) = torch.autograd.grad(loss, logprobs_NT)
    assert (float(loss.detach()), float(gradient_NT.norm())) == pytest.approx((0.050925948, 0.113402300), abs=1e-6)


@pytest.mark.parametrize("name", ["trl", "verl", "openrlhf"])
def test_equal_rewards_give_exactly_zero_where_the_libraries_leak(name: str) -> None:
    # Eight rewards of 0.7: trl 1.16.0 prints 0.000596, verl 0.9.1 0.056, openrlhf 0.11.2 0.92.
    old_NT = torch.full((8, 2), -1.0)
    batch = batch_of([0] * 8, torch.ones(8, 2, dtype=torch.bool), old_NT)
    assert not advantages_of(NAMED[name], [0.7] * 8, batch, reference_NT=old_NT).any()
