"""What goes from a run down to its own workers: functions and columns, which only pickle can carry.

Nothing comes back this way (workers answer in JSON), and nothing that was stored or downloaded is ever unpacked.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle


class ParcelError(ValueError):
    """Something cannot travel to another process."""


def pack(value: object) -> bytes:
    """Data for a worker. Raises ParcelError."""
    try:
        return pickle.dumps(value)
    except Exception as error:  # an object of a stranger's says why in any way it likes
        raise ParcelError(f"{type(error).__name__}: {error}") from error


def pack_function(function: Callable[..., Any]) -> bytes:
    """A function with what it refers to; one that can be imported goes by its name. Raises ParcelError."""
    try:
        packed: bytes = cloudpickle.dumps(function)
    except Exception as error:  # as above
        raise ParcelError(f"{type(error).__name__}: {error}") from error
    return packed


def unpack(parcel: bytes) -> Any:
    """In the worker: what `pack` or `pack_function` was given."""
    return pickle.loads(parcel)
