"""Evaluation: metrics of a step, pass@k with intervals, paired comparison of checkpoints and runs.

In: groups and outcomes. Out: metrics and differences. It never changes weights.
"""

from grouprl.evaluation.paired import Difference, ProblemResults, compare_results, paired_difference
from grouprl.evaluation.statistics import mean_interval, pass_at_k, score_interval, wilson_interval

__all__ = [
    "Difference",
    "ProblemResults",
    "compare_results",
    "mean_interval",
    "paired_difference",
    "pass_at_k",
    "score_interval",
    "wilson_interval",
]
