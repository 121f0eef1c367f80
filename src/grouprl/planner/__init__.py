"""What a run needs, before anything is loaded, and what this machine has: memory, time, devices, extras.

In: the shape of a model, of a step, rates of a machine. Out: bytes and seconds. Never loads a model.
"""

from grouprl.planner.memory import GRPO, PPO, MemoryPlan, Networks, StepShape, plan_memory
from grouprl.planner.shapes import SHAPES, ModelShape, shape_of

__all__ = ["GRPO", "PPO", "SHAPES", "MemoryPlan", "ModelShape", "Networks", "StepShape", "plan_memory", "shape_of"]
