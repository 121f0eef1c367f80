"""Groups to a packed batch, credit for every token, log-probs, and the weight updates."""

from grouprl.learner.batch import make_batch
from grouprl.learner.credit import Credit, assign_credit, kept_groups, recorded_advantages
from grouprl.learner.kl_coefficient import KlCoefficient
from grouprl.learner.learner import Learner
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.seen import Seen

__all__ = [
    "Credit",
    "KlCoefficient",
    "Learner",
    "Optimizer",
    "Seen",
    "assign_credit",
    "kept_groups",
    "make_batch",
    "recorded_advantages",
]
