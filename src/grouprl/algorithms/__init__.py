"""Pure tensor functions: advantages, ratios, KL, losses, weights. No device, no I/O, no configuration object."""

from grouprl.algorithms.advantages import completion_advantages, group_advantages, has_signal
from grouprl.algorithms.bradley_terry import bradley_terry_loss
from grouprl.algorithms.corrections import mismatch_weights
from grouprl.algorithms.dpo import dpo_loss
from grouprl.algorithms.entropy import high_entropy_mask
from grouprl.algorithms.filters import kept_groups, kept_rows
from grouprl.algorithms.gae import gae
from grouprl.algorithms.kl import kl_estimate, steered_kl_coef
from grouprl.algorithms.losses import policy_loss
from grouprl.algorithms.overlong import overlong_penalty
from grouprl.algorithms.steps import step_advantages
from grouprl.algorithms.tokens import token_advantages
from grouprl.algorithms.values import value_loss
from grouprl.algorithms.weights import token_weights

__all__ = [
    "bradley_terry_loss",
    "completion_advantages",
    "dpo_loss",
    "gae",
    "group_advantages",
    "has_signal",
    "high_entropy_mask",
    "kept_groups",
    "kept_rows",
    "kl_estimate",
    "mismatch_weights",
    "overlong_penalty",
    "policy_loss",
    "steered_kl_coef",
    "step_advantages",
    "token_advantages",
    "token_weights",
    "value_loss",
]
