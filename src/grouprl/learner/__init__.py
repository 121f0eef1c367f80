"""Groups to a packed batch, credit for every token, log-probs, and the weight updates."""

from grouprl.learner.batch import make_batch
from grouprl.learner.credit import assign_credit, token_rows
from grouprl.learner.kl_coefficient import KlCoefficient
from grouprl.learner.learner import Learner, LearnResult
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.policy_evaluation import PolicyEvaluation
from grouprl.learner.trace import recorded_tokens, watches

__all__ = [
    "KlCoefficient",
    "LearnResult",
    "Learner",
    "Optimizer",
    "PolicyEvaluation",
    "assign_credit",
    "make_batch",
    "recorded_tokens",
    "token_rows",
    "watches",
]
