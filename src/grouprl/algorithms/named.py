"""The family by name. Each entry is a few fields that differ from GRPO, and the paper that says so.

docs/algorithms.md has the equation, the reasons and a curve of each.
"""

from __future__ import annotations

from types import MappingProxyType

from grouprl.algorithms.presets import PRESETS
from grouprl.algorithms.spec import Algorithm

# DeepSeekMath, arXiv:2402.03300, algorithm 1; clip 0.2 as in PPO, beta = 0.04 as in section 4.2.
grpo = Algorithm("grpo")

# DeepSeekMath, section 4.1.3: rewards for steps, normalised over the group, summed over the steps to come.
grpo_process = Algorithm("grpo_process", credit="step")

# DeepSeekMath, section 4.1.4: the reference follows the policy, here every 20 steps.
grpo_iterative = Algorithm("grpo_iterative", refresh_reference=20)

# Dr.GRPO, arXiv:2503.20783, section 3.2: neither the deviation nor the length divides; no KL.
dr_grpo = Algorithm("dr_grpo", scale="none", aggregate="constant", kl_coef=0.0)

# DAPO, arXiv:2503.14476, sections 3.1 to 3.4; no KL (section 2.3). The soft punishment took the place of masking cut
# completions (its authors, beside the code that they published): mask_overlong is a choice beside it.
dapo = Algorithm(
    "dapo",
    clip_high=0.28,
    aggregate="token_mean",
    kl_coef=0.0,
    drop_equal=True,
    refills=3,
    overlong_buffer=0.2,
)

# RLOO, arXiv:2402.14740, section 2.2: REINFORCE of whole completions against the mean of the others; KL in the reward.
rloo = Algorithm(
    "rloo",
    baseline="leave_one_out",
    scale="none",
    surrogate="plain",
    aggregate="constant",
    kl="k1",
    kl_in="reward",
    kl_coef=0.03,
)

# REINFORCE (Williams 1992): the reward less a constant.
reinforce = Algorithm(
    "reinforce", baseline="constant", scale="none", surrogate="plain", aggregate="constant", kl_coef=0.0
)

# The same with the mean reward of the batch as the baseline.
reinforce_batch = Algorithm(
    "reinforce_batch", baseline="batch_mean", scale="none", surrogate="plain", aggregate="constant", kl_coef=0.0
)

# REINFORCE++, arXiv:2501.03262, section 3: rewards to come of each token, KL in the reward, normalised over the batch.
reinforce_pp = Algorithm(
    "reinforce_pp",
    credit="token",
    baseline="batch_mean",
    scale="batch_std",
    aggregate="token_mean",
    kl="k1",
    kl_in="reward",
    kl_coef=0.01,
)

# GSPO, arXiv:2507.18071, equations 5 to 7 and section 5.1: four minibatches, clipping of whole sequences.
gspo = Algorithm("gspo", ratio="sequence", clip_low=3e-4, clip_high=4e-4, kl_coef=0.0, minibatches=4)

# CISPO, MiniMax-M1, arXiv:2506.13585, equations 4 and 5: the weight is clipped, from above alone, never the gradient;
# at 5, as ScaleRL has it (arXiv:2510.13786).
cispo = Algorithm("cispo", surrogate="cispo", clip_low=1.0, clip_high=4.0, aggregate="token_mean", kl_coef=0.0)

# PPO, arXiv:1707.06347, with a critic as large as the policy, as RLHF uses it (InstructGPT, arXiv:2203.02155). lam = 1
# as verl and OpenRLHF have it: on the bundled task it needs 5.0 steps where TRL's 0.95 needs 8.7 (docs/comparison.md).
ppo = Algorithm(
    "ppo",
    baseline="critic",
    critic="copy",
    credit="token",
    scale="batch_std",
    lam=1.0,
    aggregate="token_mean",
    kl="k1",
    kl_in="reward",
    kl_coef=0.05,
    minibatches=4,
)

NAMED = MappingProxyType(
    {
        algorithm.name: algorithm
        for algorithm in (
            grpo,
            grpo_process,
            grpo_iterative,
            dr_grpo,
            dapo,
            rloo,
            reinforce,
            reinforce_batch,
            reinforce_pp,
            gspo,
            cispo,
            ppo,
            *PRESETS,
        )
    }
)
