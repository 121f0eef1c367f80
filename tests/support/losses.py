"""The loss of GRPO's step, for a learner that is tested without one."""

from functools import partial

from grouprl.learner.learner import Learner, TokenLoss
from grouprl.step import token_loss


def loss_of(learner: Learner) -> TokenLoss:
    """As `grpo_step` gives it."""
    return partial(token_loss, learner)
