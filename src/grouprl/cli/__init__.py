"""The command line, one verb per capability: each builds a configuration and calls one function.

In: command-line arguments. Out: an exit code. Never has logic that a Python caller would need.
"""

from grouprl.cli import verbs, more_verbs  # isort: skip  the order of --help
from grouprl.cli.words import app, main

__all__ = ["app", "main", "more_verbs", "verbs"]
