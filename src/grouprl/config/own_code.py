"""Names classes and functions that a program defines, with a digest of their source, for the record of a run."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import tokenize
from functools import partial
from types import FunctionType, MethodType

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


def _is_own(thing: type | FunctionType) -> bool:
    return thing.__module__ != "builtins" and thing.__module__.partition(".")[0] != "grouprl"


def _tree(thing: type | FunctionType) -> str:
    """The source as a syntax tree; empty where it is not known, as in an interactive session."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    # A lambda within an expression is no statement, and a file may have changed since it was loaded.
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return ""
    lambdas = [ast.dump(node) for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    return "\n".join(lambdas) if thing.__name__ == "<lambda>" else ast.dump(tree)
