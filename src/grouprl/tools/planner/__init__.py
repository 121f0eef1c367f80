"""Estimates memory and time of a run before anything is loaded, and lists what this machine has.

In: shapes of a model and a step, rates of a machine. Out: bytes and seconds. Never loads a model.
"""

from grouprl.tools.planner.memory import GRPO, PPO, MemoryPlan, Networks, StepShape, plan_memory
from grouprl.tools.planner.shapes import SHAPES, ModelShape, shape_of

__all__ = ["GRPO", "PPO", "SHAPES", "MemoryPlan", "ModelShape", "Networks", "StepShape", "plan_memory", "shape_of"]
