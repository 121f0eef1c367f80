"""Groups to a packed batch, log-probs, and one weight update."""

from grouprl.learner.batch import make_batch
from grouprl.learner.learner import Learner
from grouprl.learner.optimizer import Optimizer

__all__ = ["Learner", "Optimizer", "make_batch"]
