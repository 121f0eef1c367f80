"""Packs functions and columns with pickle, for the way from a run to its workers.

Workers answer in JSON, and the run never unpacks data that was stored or downloaded.
"""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle


class ParcelError(ValueError):
    """A value cannot be sent to another process."""


def pack(value: object) -> bytes:
    """Packs data, or a function with everything it refers to; an importable function by name. Raises ParcelError."""
    try:
        packed: bytes = cloudpickle.dumps(value)
    except Exception as error:  # a user's object may raise any exception
        raise ParcelError(f"{type(error).__name__}: {error}") from error
    return packed


def unpack(parcel: bytes) -> Any:
    """Unpacks a value from `pack` in the other process."""
    return pickle.loads(parcel)
