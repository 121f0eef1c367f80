"""The curriculum chooses the problems of a step from the seed, the step and the pass rates found so far.

In: problems and verdicts. Out: visits. It never samples or scores; its state can be rebuilt from the record.
"""
