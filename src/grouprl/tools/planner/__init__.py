"""Estimates memory of a run, and its time on this CPU, before anything is loaded; lists what this machine has.

In: shapes of a model and a step. Out: bytes and seconds. Never loads a model.
"""

from grouprl.tools.planner.memory import GRPO, PPO, MemoryPlan, Networks, StepShape, plan_memory
from grouprl.tools.planner.shapes import SHAPES, ModelShape, shape_of

__all__ = ["GRPO", "PPO", "SHAPES", "MemoryPlan", "ModelShape", "Networks", "StepShape", "plan_memory", "shape_of"]
