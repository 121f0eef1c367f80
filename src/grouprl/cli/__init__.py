"""One verb per capability: each builds a configuration and calls one function.

In: words of a command line. Out: an exit code. Never holds logic that a Python caller would miss.
"""

from grouprl.cli import verbs
from grouprl.cli.machine import doctor, plan
from grouprl.cli.words import app, main

__all__ = ["app", "doctor", "main", "plan", "verbs"]
