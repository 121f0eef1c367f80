"""The configurations of TRL and verl, read as recipes of this library.

In: a file of theirs. Out: a recipe, and a verdict on every key: equal, changed, not needed or unsupported.
Never imports trl or verl, and never guesses: a key that no table names is unsupported.
"""
