"""DAPO (arXiv:2503.14476, sections 3.1 to 3.4): higher upper clip, token mean, refills, length penalty."""

from grouprl.algorithms.filters import Filter
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm

# mask_overlong stays off: the authors' published code uses the soft penalty instead of masking truncated
# completions. No KL: section 2.3.
ALGORITHM = Algorithm(
    "dapo",
    objective=Clip(clip_high=0.28, aggregate="token_mean"),
    kl=None,
    filter=Filter(drop_equal=True, refills=3, overlong_buffer=0.2),
)
