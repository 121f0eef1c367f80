"""REINFORCE (Williams 1992): the reward less a constant."""

from grouprl.algorithms.advantages import ConstantAdvantage
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.spec import Algorithm

ALGORITHM = Algorithm("reinforce", advantage=ConstantAdvantage(), objective=Plain(aggregate="constant"), kl=None)
