"""Groups to a packed batch, credit for every token, log-probs, and the weight updates."""

from grouprl.learner.batch import make_batch
from grouprl.learner.credit import Credit, assign_credit
from grouprl.learner.kl_coefficient import KlCoefficient
from grouprl.learner.learner import Learned, Learner
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.seen import Seen
from grouprl.learner.trace import recorded_tokens, watches

__all__ = [
    "Credit",
    "KlCoefficient",
    "Learned",
    "Learner",
    "Optimizer",
    "Seen",
    "assign_credit",
    "make_batch",
    "recorded_tokens",
    "watches",
]
