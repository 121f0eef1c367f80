"""REINFORCE++ with baseline (arXiv:2501.03262, section 3.2): the group's mean, the batch's deviation, k2 as loss."""

from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.tokens import GroupTokenAdvantage

# verl: compute_reinforce_plus_plus_baseline_outcome_advantage whitens over tokens, with n - 1 and 1e-8; its example
# has the KL as k2 (mse) in the loss at 0.001.
ALGORITHM = Algorithm(
    "rf_baseline",
    advantage=GroupTokenAdvantage(scale="batch_std", std="sample", eps=1e-8),
    objective=Clip(aggregate="token_mean"),
    kl=Kl(kl_estimator="k2", kl_coef=0.001),
)
