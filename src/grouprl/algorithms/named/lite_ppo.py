"""Lite PPO (arXiv:2508.08221): the group's mean, the batch's deviation, a mean over tokens."""

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm

ALGORITHM = Algorithm(
    "lite_ppo", advantage=GroupAdvantage(scale="batch_std"), objective=Clip(aggregate="token_mean"), kl=None
)
