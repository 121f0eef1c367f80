"""Other libraries' GRPO by name: the same advantages, loss and gradient as theirs, from the same rewards and log-probs.

Each is the library with its group estimator, what its own words ask for in GRPO, and every number left at its default.
docs/presets.md compares them line by line and lists what remains different.
"""

from __future__ import annotations

from grouprl.algorithms.spec import Algorithm

# TRL 1.16.0, trl/trainer/grpo_config.py: loss_type "dapo" = mean over the active tokens of the batch, beta 0.0.
# trl/trainer/grpo_trainer.py, _generate_and_score_completions: nanstd (n - 1), 1e-4 added to it.
trl = Algorithm("trl", std="sample", eps=1e-4, aggregate="token_mean", kl_coef=0.0)

# verl 0.9.1, verl/trainer/ppo/core_algos.py, compute_grpo_outcome_advantage: torch.std (n - 1), 1e-6 added to it.
# verl/trainer/config/actor/actor.yaml: loss_agg_mode "token-mean", clip_ratio_c 3.0, kl_loss_coef 0.001 with
# kl_loss_type low_var_kl (k3); use_kl_loss is off there, and docs/algo/grpo.md says to set it for GRPO.
# Prompts of a step: 1024 in verl/trainer/config/data/legacy_data.yaml; of an update: ppo_mini_batch_size 256.
verl = Algorithm("verl", std="sample", aggregate="token_mean", dual_clip=3.0, kl_coef=0.001, minibatches=4)

# OpenRLHF 0.11.2, openrlhf/trainer/ppo_utils/experience_maker.py, estimator group_norm: tensor.std (n - 1), 1e-9 added
# to it, then k1 taken from the reward of every token. openrlhf/cli/train_ppo_ray.py: loss_agg_mode "token-mean",
# kl.init_coef 0.01.
openrlhf = Algorithm(
    "openrlhf",
    std="sample",
    eps=1e-9,
    credit="token",
    aggregate="token_mean",
    kl="k1",
    kl_in="reward",
    kl_coef=0.01,
)

PRESETS = (trl, verl, openrlhf)
