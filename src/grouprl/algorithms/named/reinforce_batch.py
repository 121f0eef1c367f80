"""REINFORCE with the mean reward of the batch as the baseline."""

from grouprl.algorithms.advantages import BatchAdvantage
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.spec import Algorithm

ALGORITHM = Algorithm("reinforce_batch", advantage=BatchAdvantage(), objective=Plain(aggregate="constant"), kl=None)
