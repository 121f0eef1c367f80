"""Packs functions and columns with pickle, for the way from a run to its workers.

Workers answer in JSON, and the run never unpacks data that was stored or downloaded.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle


class ParcelError(ValueError):
    """A value cannot be sent to another process."""


def pack(value: object) -> bytes:
    """Packs data for a worker. Raises ParcelError."""
    try:
        return pickle.dumps(value)
    except Exception as error:  # a user's object may raise any exception
        raise ParcelError(f"{type(error).__name__}: {error}") from error


def pack_function(function: Callable[..., Any]) -> bytes:
    """Packs a function with everything it refers to; an importable function by name. Raises ParcelError."""
    try:
        packed: bytes = cloudpickle.dumps(function)
    except Exception as error:  # as above
        raise ParcelError(f"{type(error).__name__}: {error}") from error
    return packed


def unpack(parcel: bytes) -> Any:
    """Unpacks, in the worker, a value from `pack` or `pack_function`."""
    return pickle.loads(parcel)
