"""GRPO with process supervision (DeepSeekMath, section 4.1.3): rewards of the reasoning steps that follow a token."""

from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.steps import StepAdvantage

ALGORITHM = Algorithm("grpo_process", advantage=StepAdvantage())
