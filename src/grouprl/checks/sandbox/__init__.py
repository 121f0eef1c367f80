"""The sandbox runs model-written code: each program gets a fresh one.

In: a program and calls. Out: plain data and error texts. It never gives expected values to a program (docs/sandbox.md).
"""

from grouprl.checks.sandbox.runner import BACKENDS, choose_backend, run_in_sandbox, why_unavailable
from grouprl.checks.sandbox.values import CallFailure, Limits, ReturnValue, SandboxError, SandboxResult

__all__ = [
    "BACKENDS",
    "CallFailure",
    "Limits",
    "ReturnValue",
    "SandboxError",
    "SandboxResult",
    "choose_backend",
    "run_in_sandbox",
    "why_unavailable",
]
