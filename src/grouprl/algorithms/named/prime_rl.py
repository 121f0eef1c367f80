"""prime-rl's default (August 2026): DPPO's mask, and a penalty on the log-ratio to the sampler."""

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.filters import Filter
from grouprl.algorithms.losses import Plain
from grouprl.algorithms.spec import Algorithm, Updates

# src/prime_rl/trainer/rl/loss.py, default_loss_fn: dppo_mask_low and dppo_mask_high 0.2, kl_tau 1e-3, over the tokens
# of the batch; orchestrator: filter_zero_advantages. Its samplers are some versions behind; here updates make the lag.
ALGORITHM = Algorithm(
    "prime_rl",
    advantage=GroupAdvantage(scale="none"),
    objective=Plain(aggregate="token_mean", divergence_tv=0.2, drift_coef=1e-3),
    kl=None,
    filter=Filter(drop_equal=True),
    updates=Updates(minibatches=4),
)
