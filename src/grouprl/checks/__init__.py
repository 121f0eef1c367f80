"""Verifiers that run programs or other libraries: sandbox and code tests, judge model, math-verify, reasoning-gym.

In: completions. Out: values, or `Invalid` with a reason. Never runs model-written code outside of the sandbox.
"""
