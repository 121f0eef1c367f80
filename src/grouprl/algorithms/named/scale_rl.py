"""ScaleRL (arXiv:2510.13786, section 4): CISPO up to 5, advantages scaled over the batch, a mean by prompt."""

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.filters import Filter
from grouprl.algorithms.named.cispo import Cispo
from grouprl.algorithms.spec import Algorithm, Updates

# The paper's samplers are up to 8 versions behind (PipelineRL-8); 8 updates of a batch make the same lag. Its other
# parts are no algorithm: float32 logits (the default here), an end of the thought by force, no prompt solved in 90 %.
ALGORITHM = Algorithm(
    "scale_rl",
    advantage=GroupAdvantage(scale="advantage_std"),
    objective=Cispo(clip_low=1.0, clip_high=4.0, aggregate="prompt_mean"),
    kl=None,
    filter=Filter(drop_equal=True),
    updates=Updates(minibatches=8),
)
