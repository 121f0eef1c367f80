"""Compiled CPU kernels for operations that torch does not fuse; all code also works without them, but slower."""

from grouprl.models.kernels.build import library
from grouprl.models.kernels.functions import (
    add_norm,
    fits,
    kernels,
    linear_logprobs,
    pointers,
    swiglu,
    tree_attention,
)

__all__ = ["add_norm", "fits", "kernels", "library", "linear_logprobs", "pointers", "swiglu", "tree_attention"]
