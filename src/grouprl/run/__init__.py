"""The run around the step: assemble the parts, train, checkpoint, resume, stop cleanly.

In: a `RunConfig`, a task and rewards. Out: a run directory. Never decides how a step is computed.
"""
