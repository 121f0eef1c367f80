"""Evaluation: pass@k, intervals, comparison of checkpoints."""

from grouprl.evaluation.statistics import mean_interval, pass_at_k, wilson_interval

__all__ = ["mean_interval", "pass_at_k", "wilson_interval"]
