"""One verb per capability: each builds a configuration and calls one function.

In: words of a command line. Out: an exit code. Never holds logic that a Python caller would miss.
"""

from grouprl.cli.verbs import main

__all__ = ["main"]
