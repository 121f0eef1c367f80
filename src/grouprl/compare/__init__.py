"""Several runs on the same problems and seeds, compared in pairs.

In: variants of one configuration. Out: their runs and one comparison. Never trains by itself: each run is a process.
"""
