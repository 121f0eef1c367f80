"""Training without sampling: SFT, DPO, reward models, and the preference pairs they learn from.

In: prompt/completion or preference pairs. Out: a model folder. Never samples from the policy.
"""
