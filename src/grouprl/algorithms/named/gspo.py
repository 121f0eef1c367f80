"""GSPO (arXiv:2507.18071, equations 5 to 7 and section 5.1): one ratio for the completion."""

from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm, Updates

ALGORITHM = Algorithm(
    "gspo", objective=Clip(ratio="sequence", clip_low=3e-4, clip_high=4e-4), kl=None, updates=Updates(minibatches=4)
)
