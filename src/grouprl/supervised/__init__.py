"""Supervised training: SFT, DPO, reward models, and the preference pairs for the last two.

In: prompt/completion or preference pairs. Out: a model folder. It never samples from the policy.
"""
