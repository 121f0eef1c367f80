"""An algorithm in a user's file, which its user alone may name: the file runs in the run's own process."""

from __future__ import annotations

from pathlib import Path

from grouprl.algorithms.spec import Algorithm
from grouprl.rewards.functions import import_code, read_code
from grouprl.types import UserError, unknown_name


def algorithm_in_file(text: str) -> Algorithm:
    """The algorithm that `FILE.py:NAME` names.

    Raises:
        UserError: there is no such file, it fails, or it has no algorithm of this name.
    """
    place, _, name = text.rpartition(":")
    path = Path(place).expanduser().resolve()
    code = read_code(path)
    try:
        module = import_code(str(path), code, path.name)  # with .py: no import has this name
    except Exception as error:  # a program, which can raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"--algorithm {text}: expected a file that runs, got {reason}: correct it") from error
    known = {one: found for one, found in vars(module).items() if isinstance(found, Algorithm)}
    if name not in known:
        raise unknown_name(f"--algorithm {text}", name, known)
    return known[name]
