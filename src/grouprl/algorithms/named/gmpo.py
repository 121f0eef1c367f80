"""GMPO (arXiv:2507.20673, equation 4): the geometric mean of ratios that are clipped at e^-0.4 and e^0.4."""

from grouprl.algorithms.losses import Gmpo
from grouprl.algorithms.spec import Algorithm, Updates

# With one update all ratios are 1, as in GRPO; GSPO's number of minibatches.
ALGORITHM = Algorithm("gmpo", objective=Gmpo(), kl=None, updates=Updates(minibatches=4))
