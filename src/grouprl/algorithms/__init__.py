"""Pure tensor functions: advantages, ratios, KL, losses, weights. No device, no I/O, no configuration object."""

from grouprl.algorithms.advantages import group_advantages, has_signal
from grouprl.algorithms.dpo import dpo_loss
from grouprl.algorithms.gae import gae
from grouprl.algorithms.kl import kl_estimate
from grouprl.algorithms.losses import policy_loss
from grouprl.algorithms.steps import step_advantages
from grouprl.algorithms.weights import token_weights

__all__ = [
    "dpo_loss",
    "gae",
    "group_advantages",
    "has_signal",
    "kl_estimate",
    "policy_loss",
    "step_advantages",
    "token_weights",
]
