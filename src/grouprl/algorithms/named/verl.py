"""verl's GRPO (0.9.1), compared in docs/coming_from.md."""

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm, Updates

# verl/trainer/ppo/core_algos.py, compute_grpo_outcome_advantage: torch.std (n - 1), 1e-6 added to it.
# verl/trainer/config/actor/actor.yaml: loss_agg_mode "token-mean", clip_ratio_c 3.0, kl_loss_coef 0.001 with
# kl_loss_type low_var_kl (k3); use_kl_loss is off there, and docs/algo/grpo.md says to set it for GRPO.
# Prompts of a step: 1024 in verl/trainer/config/data/legacy_data.yaml; of an update: ppo_mini_batch_size 256.
ALGORITHM = Algorithm(
    "verl",
    advantage=GroupAdvantage(std="sample"),
    objective=Clip(aggregate="token_mean", dual_clip=3.0),
    kl=Kl(kl_coef=0.001),
    updates=Updates(minibatches=4),
)
