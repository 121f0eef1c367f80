"""Compiled CPU kernels for operations that torch does not fuse; all code also works without them, but slower."""

from grouprl.models.kernels.build import library
from grouprl.models.kernels.functions import add_norm, fits, linear_logprobs, swiglu, tree_attention

__all__ = ["add_norm", "fits", "library", "linear_logprobs", "swiglu", "tree_attention"]
