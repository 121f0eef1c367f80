"""Proves what a run did: `replay` recomputes a recorded step, `selftest` checks the user's own model and settings.

A run directory, or a model and settings, go in; numbers with their tolerances come out. Neither changes a run.
"""
