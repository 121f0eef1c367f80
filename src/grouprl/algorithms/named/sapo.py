"""SAPO (arXiv:2511.20347, equations 5 and 6): a soft gate instead of a clip, four minibatches."""

from grouprl.algorithms.losses import Sapo
from grouprl.algorithms.spec import Algorithm, Updates

ALGORITHM = Algorithm("sapo", objective=Sapo(), kl=None, updates=Updates(minibatches=4))
