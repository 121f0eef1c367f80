"""Pure tensor functions: advantages, ratios, KL, losses, weights; and an algorithm as a value made of their options.

In: tensors. Out: tensors. No device, no I/O, no configuration object.
"""

from grouprl.algorithms.advantages import Statistics, group_advantages, group_statistics, has_signal
from grouprl.algorithms.corrections import mismatch_weights
from grouprl.algorithms.distillation import reverse_kl
from grouprl.algorithms.entropy import high_entropy_mask, steered_entropy_coef
from grouprl.algorithms.experts import balance_loss
from grouprl.algorithms.filters import kept_groups, overlong_penalty
from grouprl.algorithms.kl import kl_estimate, steered_kl_coef
from grouprl.algorithms.losses import policy_loss, token_weights
from grouprl.algorithms.preferences import bradley_terry_loss, dpo_loss
from grouprl.algorithms.steps import step_advantages
from grouprl.algorithms.surrogates import clipped_tokens, policy_ratios
from grouprl.algorithms.tokens import gae, token_advantages
from grouprl.algorithms.values import value_loss

__all__ = [
    "Statistics",
    "balance_loss",
    "bradley_terry_loss",
    "clipped_tokens",
    "dpo_loss",
    "gae",
    "group_advantages",
    "group_statistics",
    "has_signal",
    "high_entropy_mask",
    "kept_groups",
    "kl_estimate",
    "mismatch_weights",
    "overlong_penalty",
    "policy_loss",
    "policy_ratios",
    "reverse_kl",
    "steered_entropy_coef",
    "steered_kl_coef",
    "step_advantages",
    "token_advantages",
    "token_weights",
    "value_loss",
]
