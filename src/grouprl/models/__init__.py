"""Models load policy, reference, critic, reward model and tokenizer, and compute hidden states and log-probs.

In: a checkpoint's name, packed tokens. Out: modules and tensors. They never sample or update.
"""
