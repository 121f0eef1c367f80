"""Writes and reads the run directory, the only output of a run (docs/run_directory.md).

In: frozen values of a step. Out: files that `less`, `jq` and `sqlite3` read. Never computes with stored values.
"""
