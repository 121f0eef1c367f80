"""Which problems a step visits, from the seed, the step and the pass rates found so far.

In: problems and verdicts. Out: visits. Never samples or scores; its state can be rebuilt from the record.
"""
