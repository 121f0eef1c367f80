"""One dict per room holds what users can name; this is what they read when they name something else."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from grouprl.types import UserError

_MANY = 40


def unknown_name(what: str, got: str, known: Iterable[str], *, listed_by: str = "") -> UserError:
    """The error for a name that is not among the known ones, with the nearest of them.

    Very many are not told one by one; `listed_by` is the command that does so.
    """
    names = sorted(known)
    near = difflib.get_close_matches(got, names, n=1)
    if len(names) > _MANY:
        hint = f"did you mean {near[0]!r}? " if near else ""
        return UserError(f"{what}: {hint}expected one of {len(names)} names, got {got!r}: see {listed_by}")
    hint = f"did you mean {near[0]!r}?" if near else "use one of these."
    return UserError(f"{what}: expected one of {', '.join(names)}, got {got!r}: {hint}")
