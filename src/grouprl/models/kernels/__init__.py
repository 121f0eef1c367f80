"""Compiled CPU kernels for what torch has no fused form of; everything works without them, slower."""

from grouprl.models.kernels.build import library
from grouprl.models.kernels.functions import add_norm, fits, linear_logprobs, swiglu, tree_attention

__all__ = ["add_norm", "fits", "library", "linear_logprobs", "swiglu", "tree_attention"]
