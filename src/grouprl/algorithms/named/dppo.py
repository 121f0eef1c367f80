"""DPPO (arXiv:2602.04879, equations 11 and 12, binary total variation): a mask on probabilities, not on ratios."""

from grouprl.algorithms.losses import Plain
from grouprl.algorithms.spec import Algorithm, Updates

# 0.15 as in TRL's DPPO trainer, after the paper. With one update nothing is masked; GSPO's number of minibatches.
ALGORITHM = Algorithm(
    "dppo", objective=Plain(aggregate="token_mean", divergence_tv=0.15), kl=None, updates=Updates(minibatches=4)
)
