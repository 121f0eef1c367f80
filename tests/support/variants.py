"""Algorithms for tests: a named one with some options changed."""

from typing import Any

from grouprl import Algorithm
from grouprl.algorithms.named import NAMED
from grouprl.config.algorithm import with_options


def variant(base: str | Algorithm = "grpo", **options: Any) -> Algorithm:
    """As `algorithm=base algorithm.option=...` on the command line."""
    return with_options(NAMED[base] if isinstance(base, str) else base, options)
