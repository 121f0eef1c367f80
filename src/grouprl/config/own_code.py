"""Algorithms in a user's file, and the names and digests of classes and functions that a program defines."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType

from grouprl.algorithms.spec import Algorithm
from grouprl.types import UserError, unknown_name

_DIGITS = 16


def own_code(thing: object) -> str | None:
    """`MODULE.NAME DIGEST` of a class, a function, or the class of another object; None for GroupRL's own.

    The digest is of the syntax tree, so that comments and the place in a file do not count; of a class with the
    program's classes that it is derived from. What a function calls, and the values that it holds, are not in it.
    """
    while isinstance(thing, partial | MethodType):
        thing = thing.func if isinstance(thing, partial) else thing.__func__
    thing = thing if isinstance(thing, type | FunctionType) else type(thing)
    if not _is_own(thing):
        return None
    parts = [kind for kind in thing.__mro__ if _is_own(kind)] if isinstance(thing, type) else [thing]
    digest = hashlib.sha256("\n".join(map(_tree, parts)).encode()).hexdigest()
    return f"{thing.__module__}.{thing.__qualname__} {digest[:_DIGITS]}"


def algorithm_in_file(text: str) -> Algorithm:
    """The algorithm that `FILE.py:NAME` names. The file runs in this process: only its user may name it.

    Raises:
        UserError: there is no such file, it fails, or it has no algorithm of this name.
    """
    path, _, name = text.rpartition(":")
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"--algorithm {text}: expected a Python file at {path}, found none: check the path")
    module = ModuleType(file.name)  # with .py: no import has this name
    module.__file__ = str(file.resolve())
    sys.modules[file.name] = module  # where a dataclass looks for its fields' types, and `inspect` for the source
    try:
        exec(compile(file.read_bytes(), module.__file__, "exec"), vars(module))
    except Exception as error:  # a program, which can raise anything
        raise UserError(
            f"--algorithm {text}: expected a file that runs, got {type(error).__name__}: {error}"
        ) from error
    known = {one: found for one, found in vars(module).items() if isinstance(found, Algorithm)}
    if name not in known:
        raise unknown_name(f"--algorithm {text}", name, known)
    return known[name]


def _is_own(thing: type | FunctionType) -> bool:
    return thing.__module__ != "builtins" and thing.__module__.partition(".")[0] != "grouprl"


def _tree(thing: type | FunctionType) -> str:
    """The source as a syntax tree; empty where it is not known, as in an interactive session."""
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):  # a lambda within an expression is no statement
        return ""
    lambdas = [ast.dump(node) for node in ast.walk(found) if isinstance(node, ast.Lambda)]
    return "\n".join(lambdas) if thing.__name__ == "<lambda>" else ast.dump(found)
