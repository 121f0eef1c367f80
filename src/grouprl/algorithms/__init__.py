"""Pure tensor functions: advantages, ratios, KL, losses, weights. No device, no I/O, no configuration object."""

from grouprl.algorithms.advantages import group_advantages, has_signal
from grouprl.algorithms.kl import kl_estimate
from grouprl.algorithms.losses import policy_loss
from grouprl.algorithms.weights import token_weights

__all__ = ["group_advantages", "has_signal", "kl_estimate", "policy_loss", "token_weights"]
