"""The command line, one verb per capability: each builds a configuration and calls one function.

In: command-line arguments. Out: an exit code. Never has logic that a Python caller would need.
"""

from grouprl.cli import verbs, verbs_of_imports, verbs_of_lists, verbs_of_models, verbs_of_proof
from grouprl.cli.words import app, main

__all__ = ["app", "main", "verbs", "verbs_of_imports", "verbs_of_lists", "verbs_of_models", "verbs_of_proof"]
