"""LUSPO (arXiv:2602.05261): GSPO, with the loss of each completion times its length."""

from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm, Updates

# "constant" sums over the tokens of a completion, and divides by one number for all, max_tokens.
_OBJECTIVE = Clip(ratio="sequence", clip_low=3e-4, clip_high=4e-4, aggregate="constant")
ALGORITHM = Algorithm("luspo", objective=_OBJECTIVE, kl=None, updates=Updates(minibatches=4))
