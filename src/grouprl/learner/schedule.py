"""The learning rate of an update: a rise from 0, then constant, along a line or along a cosine."""

from __future__ import annotations

import math

from grouprl.config.learner import UpdateConfig


def scheduled_rate(config: UpdateConfig, turn: int, total: int | None = None) -> float:
    """Computes the learning rate of an update.

    During the W updates of the warm-up it is learning_rate * (turn + 1) / W, so that the first update has an effect.
    After it, with x = (turn - W) / (total - W), it is learning_rate times
      constant: 1
      linear:   m + (1 - m) (1 - x)
      cosine:   m + (1 - m) (1 + cos(pi x)) / 2   (arXiv:1608.03983, equation 5, without restarts)
    where m is min_lr_ratio.

    Args:
        config: the rate, its schedule and its warm-up.
        turn: the updates of the run before this one, those without a gradient too.
        total: updates of the whole run; None = unknown.

    Raises:
        ValueError: `total` is unknown and the rate depends on it.
    """
    if total is None and follows_the_end(config):
        raise ValueError(f"total: expected the number of updates with learner.schedule={config.schedule}, got None")
    warmup = float(config.warmup_steps)
    if 0 < warmup < 1:
        warmup = math.ceil(warmup * (total or 0))
    if turn < warmup:
        return config.learning_rate * (turn + 1) / warmup
    if total is None or config.schedule == "constant":
        return config.learning_rate
    left = 1 - min(1.0, (turn - warmup) / max(1.0, total - warmup))
    share = left if config.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * share)


def follows_the_end(config: UpdateConfig) -> bool:
    """Whether a rate depends on the number of updates of the whole run."""
    return config.schedule != "constant" or 0 < config.warmup_steps < 1
