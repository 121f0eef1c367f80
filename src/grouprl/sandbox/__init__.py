"""The sandbox for model-written code: a fresh one for each program, and nothing but data comes out of it.

See docs/sandbox.md for what it protects from and what it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from grouprl.sandbox.choosing import choose_backend, why_unavailable
from grouprl.sandbox.running import LAUNCHERS, run_with
from grouprl.sandbox.values import Failed, Limits, Returned, SandboxError, SandboxResult

__all__ = [
    "BACKENDS",
    "Failed",
    "Limits",
    "Returned",
    "SandboxError",
    "SandboxResult",
    "choose_backend",
    "run_in_sandbox",
    "why_unavailable",
]

BACKENDS = tuple(LAUNCHERS)
"""The names of the backends, the stronger one first."""


def run_in_sandbox(
    source: str,
    calls: Sequence[str] = (),
    *,
    setup: str = "",
    limits: Limits | None = None,
    backend: str | None = None,
) -> SandboxResult:
    """Runs a program in a fresh sandbox, then evaluates calls in its namespace; blocks until it is gone.

    What comes back is data that the program claims: compare it outside, with values that were never inside.

    Args:
        source: the program, as a module's text. Its `__name__` is "program".
        calls: expressions, such as "add(2, 3)", evaluated one after another in one process.
        setup: text that runs before the program in the same namespace. Trusted.
        limits: of this run; None = `Limits()`.
        backend: one of `BACKENDS`; None = `choose_backend()`.

    Returns:
        One outcome per call, in order. A program that fails is a result, not an error.

    Raises:
        SandboxError: the sandbox itself failed: nothing is known about the program.
        ValueError: `setup` failed.
        UserError: no backend works on this machine.
    """
    return run_with(backend or choose_backend(), source, calls, setup, limits or Limits())
