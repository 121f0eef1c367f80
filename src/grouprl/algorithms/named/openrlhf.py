"""OpenRLHF's GRPO (0.11.2), compared in docs/coming_from.md."""

from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.tokens import GroupTokenAdvantage

# openrlhf/trainer/ppo_utils/experience_maker.py, estimator group_norm: tensor.std (n - 1), 1e-9 added to it, then
# k1 subtracted from the reward of every token. openrlhf/cli/train_ppo_ray.py: loss_agg_mode "token-mean",
# kl.init_coef 0.01.
ALGORITHM = Algorithm(
    "openrlhf",
    advantage=GroupTokenAdvantage(std="sample", eps=1e-9),
    objective=Clip(aggregate="token_mean"),
    kl=Kl(kl_estimator="k1", kl_in="reward", kl_coef=0.01),
)
