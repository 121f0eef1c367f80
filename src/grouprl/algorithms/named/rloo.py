"""RLOO (arXiv:2402.14740, section 2.2): the baseline is the mean of the other group members; KL in the reward."""

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.spec import Algorithm

ALGORITHM = Algorithm(
    "rloo",
    advantage=GroupAdvantage(baseline="leave_one_out", scale="none"),
    objective=Plain(aggregate="constant"),
    kl=Kl(kl_estimator="k1", kl_in="reward", kl_coef=0.03),
)
