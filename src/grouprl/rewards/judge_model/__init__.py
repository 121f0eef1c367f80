"""A language model behind an HTTP endpoint that grades completions.

In: completions and a rubric. Out: grades, `Invalid` where none could be read. Never retries without a limit.
"""

from grouprl.rewards.judge_model.grading import JudgeModel

__all__ = ["JudgeModel"]
