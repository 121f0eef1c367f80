"""Compiled CPU kernels for operations that torch does not fuse; all code also works without them, but slower."""
