"""The run directory: the only way from a run to anything that people look at (docs/run_directory.md).

In: frozen values of a step. Out: files that `less`, `jq` and `sqlite3` read. Never computes with what it stores.
"""
