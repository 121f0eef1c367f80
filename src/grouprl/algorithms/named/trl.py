"""TRL's GRPO (1.16.0), compared in docs/coming_from.md."""

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.losses import Clip
from grouprl.algorithms.spec import Algorithm

# trl/trainer/grpo_config.py: loss_type "dapo" = mean over the active tokens of the batch, beta 0.0.
# trl/trainer/grpo_trainer.py, _generate_and_score_completions: nanstd (n - 1), 1e-4 added to it.
ALGORITHM = Algorithm(
    "trl", advantage=GroupAdvantage(std="sample", eps=1e-4), objective=Clip(aggregate="token_mean"), kl=None
)
