"""The built-in reward functions by name: functions in TRL's form, or classes whose fields are settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grouprl.rewards.formats import Regex, ThinkFormat
from grouprl.rewards.json_schema import JsonSchema
from grouprl.rewards.judge_model.grading import JudgeModel
from grouprl.rewards.lengths import CosineLength
from grouprl.rewards.repetition import Repetition
from grouprl.rewards.rules import boxed_format, correct_answer
from grouprl.rewards.steps import equation_steps
from grouprl.rewards.symbolic import MathVerify
from grouprl.rewards.unit_tests import UnitTests

REWARDS: dict[str, Callable[..., Any]] = {
    "boxed_format": boxed_format,
    "correct_answer": correct_answer,
    "cosine_length": CosineLength,
    "json_schema": JsonSchema,
    "judge_model": JudgeModel,
    "math_verify": MathVerify,
    "regex": Regex,
    "repetition": Repetition,
    "think_format": ThinkFormat,
    "unit_tests": UnitTests,
}

STEP_REWARDS: dict[str, Callable[..., Any]] = {"equation_steps": equation_steps}
"""Process rewards: a value for each step of a completion."""
