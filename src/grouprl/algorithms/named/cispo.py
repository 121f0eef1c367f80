"""CISPO (MiniMax-M1, arXiv:2506.13585, equations 4 and 5): the token weight has an upper bound alone."""

from grouprl.algorithms.losses import Cispo
from grouprl.algorithms.spec import Algorithm

# The bound is 5, as in ScaleRL (arXiv:2510.13786).
ALGORITHM = Algorithm("cispo", objective=Cispo(clip_low=1.0, clip_high=4.0, aggregate="token_mean"), kl=None)
