"""The family by name: one short file each, which says what differs from GRPO and which paper says so.

In: nothing. Out: `NAMED`. Computes nothing; docs/algorithms.md has the table, and pages with reasons and curves.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from grouprl.algorithms.spec import Algorithm

_FILES = (
    # By use: those to start with, then the others.
    *("grpo", "dapo", "dr_grpo", "gspo", "ppo"),
    *("cispo", "rloo", "reinforce_pp", "rf_baseline", "scale_rl", "prime_rl", "lite_ppo", "sapo", "maxrl", "dppo"),
    *("gmpo", "vespo", "luspo", "opo", "gpg", "pass_at_k", "grpo_process", "grpo_iterative", "reinforce"),
    "reinforce_batch",
    # Other libraries' numbers.
    "trl",
    "verl",
    "openrlhf",
)
NAMED: Mapping[str, Algorithm] = MappingProxyType(
    {name: import_module(f"{__name__}.{name}").ALGORITHM for name in _FILES}
)


def source(name: str) -> str:
    """Returns the docstring of a named algorithm's file, with its paper."""
    return import_module(f"{__name__}.{name}").__doc__ or ""
