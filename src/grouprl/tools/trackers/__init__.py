"""Shows a run in tensorboard, wandb, trackio or mlflow while it trains: metrics, evaluations, tables of completions.

In: what a run records, step by step. Out: nothing; a tracker that fails or hangs is left out, and the run continues.
It never computes a number: it sends those of the record, under TRL's names where the meaning is the same.
"""

from grouprl.tools.trackers.following import Trackers as Trackers
