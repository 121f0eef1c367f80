"""Runs reward functions in killable workers and collects their outcomes.

In: groups of completions. Out: one `RewardOutcome` for each. Never turns a failure into a number.
"""
