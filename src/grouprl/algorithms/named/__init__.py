"""The family by name: one short file each, which says what differs from GRPO and which paper says so.

In: nothing. Out: `NAMED`. Computes nothing; docs/algorithms/NAME.md has the equation, the reasons and a curve.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from grouprl.algorithms.spec import Algorithm

_FILES = (
    "grpo",
    "grpo_process",
    "grpo_iterative",
    "dr_grpo",
    "dapo",
    "rloo",
    "reinforce",
    "reinforce_batch",
    "reinforce_pp",
    "gspo",
    "luspo",
    "cispo",
    "sapo",
    "gmpo",
    "dppo",
    "maxrl",
    "ppo",
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
