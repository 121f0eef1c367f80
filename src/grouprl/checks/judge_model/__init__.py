"""A judge model: a language model behind an HTTP endpoint that grades completions.

In: completions and a rubric. Out: scores, or `Invalid` with a reason. Never retries without a limit.
"""
