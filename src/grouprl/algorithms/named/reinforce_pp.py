"""REINFORCE++ (arXiv:2501.03262, section 3): each token's return minus a KL penalty, normalized over the batch."""

from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.tokens import TokenAdvantage

ALGORITHM = Algorithm(
    "reinforce_pp",
    advantage=TokenAdvantage(),
    objective=Clip(aggregate="token_mean"),
    kl=Kl(kl_estimator="k1", kl_in="reward", kl_coef=0.01),
)
