"""Compares several runs in pairs, on the same problems and seeds.

In: variants of one configuration. Out: their runs and one comparison. Never trains itself: each run is a process.
"""
