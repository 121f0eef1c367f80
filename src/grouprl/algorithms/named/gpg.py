"""GPG (arXiv:2504.02546): log-prob times advantage, without ratio, deviation or KL."""

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.filters import Filter
from grouprl.algorithms.named.cispo import Cispo
from grouprl.algorithms.spec import Algorithm

# A ratio clipped to 1 is no ratio. Dropped groups leave the denominator: the paper's factor B / (B - M) of B groups,
# M of them without signal.
ALGORITHM = Algorithm(
    "gpg",
    advantage=GroupAdvantage(scale="none"),
    objective=Cispo(clip_low=0.0, clip_high=0.0, aggregate="prompt_mean"),
    kl=None,
    filter=Filter(drop_equal=True),
)
