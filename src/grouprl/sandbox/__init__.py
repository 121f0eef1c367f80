"""The sandbox runs model-written code: each program gets a fresh one.

In: a program and calls. Out: plain data and error texts. It never gives expected values to a program (docs/sandbox.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from grouprl.sandbox.backends import choose_backend, why_unavailable
from grouprl.sandbox.runner import LAUNCHERS, run_with
from grouprl.sandbox.values import CallFailure, Limits, ReturnValue, SandboxError, SandboxResult

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

BACKENDS = tuple(LAUNCHERS)
"""Names of the backends; the stronger one comes first."""


def run_in_sandbox(
    source: str,
    calls: Sequence[str] = (),
    *,
    setup: str = "",
    limits: Limits | None = None,
    backend: str | None = None,
) -> SandboxResult:
    """Runs a program in a fresh sandbox, evaluates calls in its namespace, and blocks until the sandbox has ended.

    The returned data is only a claim of the program: compare it outside, with values that were never inside.

    Args:
        source: the program, as a module's text. Its `__name__` is "program".
        calls: expressions, such as "add(2, 3)", evaluated one after another in one process.
        setup: trusted text that runs before the program in the same namespace.
        limits: the limits of this run; None = `Limits()`.
        backend: one of `BACKENDS`; None = `choose_backend()`.

    Returns:
        One outcome per call, in order. The failure of a program is a result, not an error.

    Raises:
        SandboxError: the sandbox itself failed, which says nothing about the program.
        ValueError: `setup` failed.
        UserError: no backend works on this machine.
    """
    return run_with(backend or choose_backend(), source, calls, setup, limits or Limits())
