"""TEMPO (arXiv:2509.18314): values of prefixes that a group shares; token mean, higher clip, no KL as in its code."""

from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.tree import TreeAdvantage

ALGORITHM = Algorithm(
    "tree", advantage=TreeAdvantage(), objective=Clip(aggregate="token_mean", clip_high=0.28), kl=None
)
