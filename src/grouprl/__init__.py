"""GroupRL: critic-free reinforcement learning (GRPO and its family) for language models."""

from __future__ import annotations

import os
import sys

# `python -m grouprl` puts the current folder first: a typing.py in it must not replace the standard library's.
if sys.argv[:1] == ["-m"] and "-m grouprl" in " ".join(sys.orig_argv) and not sys.flags.safe_path:
    del sys.path[0]

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Before torch is loaded: threads that wait for one another sleep instead of spinning. As soon as something else wants a
# core (a reward worker, a browser), a step with spinning threads takes 40 to 80 times as long (docs/performance.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from grouprl.types import Problem, StepRecord, UserError

if TYPE_CHECKING:
    from grouprl.algorithms.spec import Algorithm
    from grouprl.config.run import RunConfig
    from grouprl.rewards.calls import Invalid
    from grouprl.rewards.functions import WeightedReward
    from grouprl.trainer.finished import Run
    from grouprl.trainer.trainer import Trainer

__version__ = "0.1.0"
# The process that started this one: a rank finds out by it that torchrun has ended, even while torch was being loaded.
__parent__ = os.getppid()
__all__ = [
    "Algorithm",
    "Invalid",
    "Problem",
    "Run",
    "RunConfig",
    "StepRecord",
    "Trainer",
    "UserError",
    "WeightedReward",
]

_LAZY = {
    "Algorithm": "grouprl.algorithms.spec",
    "Invalid": "grouprl.rewards.calls",
    "Run": "grouprl.trainer.finished",
    "RunConfig": "grouprl.config.run",
    "Trainer": "grouprl.trainer.trainer",
    "WeightedReward": "grouprl.rewards.functions",
}


def __getattr__(name: str) -> Any:
    """Loads torch and transformers only when something that needs them is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'grouprl' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
