"""Dr.GRPO (arXiv:2503.20783, section 3.2): neither the deviation nor the length divides."""

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm

ALGORITHM = Algorithm("dr_grpo", advantage=GroupAdvantage(scale="none"), objective=Clip(aggregate="constant"), kl=None)
