"""Turns groups into a packed batch, assigns credit to every token, and updates the weights."""

from grouprl.algorithms.losses import TokenGrid
from grouprl.learner.batch import PolicyEvaluation, ScoredGroups, assign_credit, make_batch
from grouprl.learner.learner import Learner
from grouprl.learner.optimizer import Optimizer
from grouprl.learner.trace import BatchUpdates, token_record, trace_updates

__all__ = [
    "BatchUpdates",
    "Learner",
    "Optimizer",
    "PolicyEvaluation",
    "ScoredGroups",
    "TokenGrid",
    "assign_credit",
    "make_batch",
    "token_record",
    "trace_updates",
]
